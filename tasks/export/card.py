"""Writes the card of an exported model: what it is, how to load it, how good it is, its terms."""

from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from dml_core.data.packing import choices_of
from dml_core.training.checkpoint import Checkpoint
from tasks.export.licences import describe_licence
from tasks.export.winner import ChosenModel
from tasks.model_facts import ModelFacts
from tasks.report_page.tables import describe_commit, make_command, read_versions
from tasks.tracking.identity import escape_markdown

LOADING = {
    "pyfunc": (
        "import mlflow",
        'model = mlflow.pyfunc.load_model("model")',
        'embeddings = model.predict(["photo.jpg"])',
    ),
    "onnx": (
        "from embedding_model import load_model",
        "model = load_model()",
        'embeddings = model.predict(["photo.jpg"])',
    ),
    "torch": (
        "from embedding_model import load_model",
        "model = load_model()",
        'embeddings = model.predict(["photo.jpg"])',
    ),
}
"""Three lines of Python that load and use an export, run in its folder."""
CROPS = {
    "whole": "the whole image is resized to the input's size",
    "center": "a central square of the input's size is cut out",
}


def write_card(
    chosen: ChosenModel,
    facts: ModelFacts,
    checkpoint: Checkpoint,
    *,
    format: str,
    onnx_difference: float | None,
) -> str:
    """Returns the model card in Markdown; texts of the study appear literally.

    Args:
        chosen: the model.
        facts: its scores, data and settings.
        checkpoint: its weights and configuration.
        format: pyfunc, onnx or torch.
        onnx_difference: largest difference of the ONNX outputs from torch's.
    """
    config = checkpoint.config
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        # Markdown, not HTML: texts are escaped by the filter.
        autoescape=False,  # noqa: S701
    )
    environment.filters["literal"] = lambda text: escape_markdown(str(text), colon="&#58;")
    return environment.get_template("card.md.jinja").render(
        facts=facts,
        is_recommended=chosen.is_recommended,
        format=format,
        loading=LOADING[format],
        onnx_difference=onnx_difference,
        preparation=choices_of(config.data),
        size_px=config.input_size_px,
        channels=checkpoint.in_channels,
        crop=CROPS.get(config.augmentation.evaluation_crop, config.augmentation.evaluation_crop),
        embedding_dim=config.model.embedding_dim,
        metric=config.retrieval_metric,
        epoch=checkpoint.selected_epoch,
        checkpoint_digest=chosen.digest(),
        data_hash=checkpoint.data_hash or facts.data.content_hash,
        split_hash=checkpoint.split_hash or facts.data.split_hash,
        licence=describe_licence(config),
        command=make_command(chosen.context.request),
        commit=describe_commit(Path()),
        versions=read_versions(),
    )
