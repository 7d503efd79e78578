"""Everything that a report draws, as files and as pictures of its page."""

from pathlib import Path

from dml_core.studies.observations import Observations
from dml_core.studies.resolved import ResolvedStudy
from tasks.report_page.embedding_map import FILE_NAME as MAP_FILE
from tasks.report_page.embedding_map import draw_embedding_map
from tasks.report_page.figure import draw_figure
from tasks.report_page.labels import name_metric
from tasks.report_page.learning_curves import draw_learning_curves
from tasks.report_page.page import Picture, embed_figure, embed_pixels

GRID_FILE = "retrieval.png"
_INTERVALS = "Means over the seeds; bands and whiskers are 95 % intervals."
_CURVES = {
    "curves": f"Learning curves: validation score and training loss. {_INTERVALS}",
    "curves-validation": (f"Validation score of every arm, the other arms in grey. {_INTERVALS}"),
    "curves-loss": f"Training loss of every arm, each on a scale of its own. {_INTERVALS}",
}


def draw_figures(study: ResolvedStudy, observations: Observations, folder: Path) -> list[Picture]:
    """Writes the study's figures to a folder: figure, figure-2, and so on; the main one first."""
    definition = study.definition
    pictures = []
    for number, figure in enumerate((definition.figure, *definition.figures), start=1):
        stem = folder / ("figure" if number == 1 else f"figure-{number}")
        published = definition.published if number == 1 else ()
        draw_figure(study, observations, figure, target=stem, published=published)
        title = figure.title or definition.question
        metrics = ", ".join(dict.fromkeys(map(name_metric, figure.y)))
        beside = " Below, on grey: what the papers printed." if published else ""
        pictures.append(
            embed_figure(
                stem,
                name=study.name,
                caption=_describe_intervals(figure.kind) + beside,
                alt=f"{title} {metrics} as a figure; its numbers are in the CSV file.",
            )
        )
    return pictures


def draw_pictures(
    study: ResolvedStudy, observations: Observations, *, evaluate_folder: Path, folder: Path
) -> list[Picture]:
    """Writes learning curves and the map of embeddings, and returns them with the retrievals."""
    pictures = []
    grid = evaluate_folder / GRID_FILE
    if grid.is_file():
        caption = (
            "What the best model finds: left the query, then the nearest test images. A solid "
            "blue frame with a tick: the same class; a dashed orange one with a cross: another."
        )
        pictures.append(embed_pixels(grid, caption=caption, alt="Queries and their neighbours"))
    if draw_embedding_map(evaluate_folder / MAP_FILE, folder / "map"):
        caption = "Test images of the best model in two dimensions; a colour and a mark a class."
        pictures.append(embed_figure(folder / "map", name=study.name, caption=caption))
    for stem in draw_learning_curves(study, observations, folder=folder):
        pictures.append(embed_figure(stem, name=study.name, caption=_CURVES[stem.name]))
    return pictures


def _describe_intervals(kind: str) -> str:
    if kind == "heatmap":
        return "Means over the seeds with half of their 95 % intervals."
    return "Means over the seeds." if kind == "matrices" else _INTERVALS
