"""Writes the card of an exported model: what it is, how to load it, how good it is, its terms."""

from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from dml_core.config import TrialConfig
from dml_core.data.packing import choices_of
from dml_core.models.weights import PACKAGES
from dml_core.training.checkpoint import Checkpoint
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
_IMAGENET = (
    "They were trained on ImageNet, whose own terms allow non-commercial research and education; "
    "whether these terms extend to weights is disputed."
)
_OWN_DATA = "The licence of your images applies to what was learnt from them."


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


def describe_licence(config: TrialConfig) -> str:
    """Returns a paragraph on the licence of a model's weights.

    It repeats what the packages say of themselves and is no legal advice.
    """
    weights, backbone = config.model.weights, config.model.backbone
    if weights == "none":
        return f"The weights were trained from scratch in this study. {_OWN_DATA}"
    if package := PACKAGES.get(weights):
        source = f"the package {package.module}, {package.licence}"
        return f"Training started from the weights of {source}. {_IMAGENET} {_OWN_DATA}"
    if weights == "imagenet":
        source = _name_library(backbone)
        return f"Training started from the ImageNet weights of {source}. {_IMAGENET} {_OWN_DATA}"
    return (
        f"Training started from the weights in the file `{weights}`, whose licence is not known "
        f"here: ask its author. {_OWN_DATA}"
    )


def _name_library(backbone: str) -> str:
    library, _, name = backbone.partition(":")
    if library == "timm":
        return f"timm's {name}, {_read_timm_licence(name)}"
    if library == "torchvision":
        return f"torchvision's {name}, whose code is under the BSD 3-Clause License"
    return backbone


def _read_timm_licence(name: str) -> str:
    import timm

    found = timm.models.get_pretrained_cfg(name, allow_unregistered=True)
    licence = getattr(found, "license", None)
    return f"with the licence {licence}" if licence else "whose licence timm does not state"
