"""The box "Take it away" of a report: the winner's settings, its model, and the next commands."""

from dataclasses import dataclass

from tasks.report_page.answer import Answer
from tasks.report_page.style import show_value
from tasks.report_page.tables import Fact, make_command
from tasks.study import StudyContext
from tasks.tracking.identity import name_model


@dataclass(frozen=True)
class TakeAway:
    """How to use the result of a study."""

    arm: str
    """The recommended arm."""
    settings: tuple[Fact, ...]
    """The values that the study varied or tuned, as `params.yaml` takes them."""
    model_uri: str
    """The accepted model in MLflow."""
    loading: tuple[str, ...]
    """Lines of Python that load and use it."""
    commands: tuple[Fact, ...]
    """Each command, by what it does."""


def make_take_away(context: StudyContext, answer: Answer) -> TakeAway | None:
    """Returns the content of the box; None where no arm has a score."""
    if not answer.best_arm:
        return None
    arm = context.study.get_arm(answer.best_arm)
    tuned = answer.budget.get(arm.name, {}).get("values") or {}
    mlflow, request = context.project.pipeline.mlflow, context.request
    uri = f"models:/{name_model(mlflow, request.folder_name)}@{mlflow.alias}"
    return TakeAway(
        arm=arm.name,
        settings=tuple(
            Fact(key, show_value(value)) for key, value in {**arm.layer, **tuned}.items()
        ),
        model_uri=uri,
        loading=(
            "import mlflow",
            f'model = mlflow.pyfunc.load_model("{uri}")',
            'embeddings = model.predict(["photo.jpg"])',
        ),
        commands=(
            Fact("the model in a folder, with its card", make_command(request, "export")),
            Fact("the same for ONNX", make_command(request, "export", "--format", "onnx")),
            Fact("embed a folder of images", make_command(request, "index", "FOLDER")),
            Fact("find the nearest images", make_command(request, "search", "PICTURE")),
            Fact("the same on a page", make_command(request, "serve")),
        ),
    )
