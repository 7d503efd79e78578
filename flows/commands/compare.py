"""dml compare: studies, or the runs of any MLflow experiment, with intervals and verdicts."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from flows.commands.terminal import DEFAULT_PARAMS, say

if TYPE_CHECKING:
    from tasks.report_page.comparison import ComparedArms
    from tasks.tracking.experiments import RunSelection

commands = typer.Typer()


@commands.command()
def compare(
    studies: Annotated[
        list[str] | None, typer.Argument(help="Two or more: NAME or NAME@PROFILE.")
    ] = None,
    experiment: Annotated[
        str, typer.Option(help="Instead of studies: name or id of an MLflow experiment.")
    ] = "",
    group_by: Annotated[
        list[str] | None,
        typer.Option(help="Tag or param whose values are the arms. Repeatable.", metavar="NAME"),
    ] = None,
    seed_by: Annotated[
        str, typer.Option(help="Tag or param that names the seed.", metavar="NAME")
    ] = "seed",
    metric: Annotated[
        str, typer.Option(help="Metric; for studies that of the first one by default.")
    ] = "",
    where: Annotated[
        str, typer.Option(help="Only these runs, in MLflow's words: \"tags.phase = 'final'\".")
    ] = "",
    tracking_uri: Annotated[
        str, typer.Option(help="MLflow's server or sqlite:///FILE; the project's by default.")
    ] = "",
    lower_is_better: Annotated[
        bool, typer.Option("--lower-is-better", help="For losses, errors and costs.")
    ] = False,
    smallest_effect: Annotated[
        float | None,
        typer.Option(help="Smallest difference worth having, such as 0.01.", min=1e-12),
    ] = None,
) -> None:
    """Compare studies, or the runs of any MLflow experiment, with intervals over the seeds.

    Prints the recommendation and a line for each arm, and writes a page with figure and table.
    """
    from dataclasses import replace

    from tasks.report_page.comparison import write_comparison
    from tasks.step_progress import shown_step

    if bool(experiment) == bool(studies) or (studies and len(studies) < 2):
        raise ValueError(
            "dml compare needs two or more studies, as in: dml compare main main@smoke; or an "
            "MLflow experiment: dml compare --experiment NAME --group-by TAG --metric METRIC"
        )
    with shown_step("comparing"):
        if experiment:
            selection = _select(experiment, tuple(group_by or ()), seed_by, metric, where)
            compared = _gather_experiment(selection, tracking_uri, lower_is_better)
        else:
            compared = _gather_studies(studies or [], metric, lower_is_better)
        if smallest_effect is not None:
            compared = replace(compared, smallest_effect=smallest_effect)
        found = write_comparison(compared, _find_reports())
    for line in found.lines:
        say(line)
    say(f"page: {found.page}")


def _gather_studies(names: list[str], metric: str, lower_is_better: bool) -> "ComparedArms":
    from tasks.compare import gather_studies, parse_study

    return gather_studies(
        [parse_study(name) for name in names], metric=metric, lower_is_better=lower_is_better
    )


def _select(
    experiment: str, group_by: tuple[str, ...], seed_by: str, metric: str, where: str
) -> "RunSelection":
    from tasks.tracking.experiments import RunSelection

    needed = {"--group-by": group_by, "--metric": metric}
    if missing := [option for option, value in needed.items() if not value]:
        raise ValueError(
            f"dml compare --experiment needs {' and '.join(missing)}, as in: dml compare "
            f"--experiment {experiment} --group-by optimizer --seed-by seed --metric accuracy"
        )
    return RunSelection(experiment, group_by, seed_by, metric, where)


def _gather_experiment(
    selection: "RunSelection", tracking_uri: str, lower_is_better: bool
) -> "ComparedArms":
    from dml_core.config.loading import load_project_config
    from dml_core.config.pipeline import MlflowConfig
    from flows.servers.connect import use_running_servers
    from tasks.compare import gather_experiment

    config = MlflowConfig(tracking_uri=tracking_uri)
    if not tracking_uri and DEFAULT_PARAMS.is_file():
        use_running_servers()
        config = load_project_config(DEFAULT_PARAMS).pipeline.mlflow
    return gather_experiment(selection, config, project=Path(), lower_is_better=lower_is_better)


def _find_reports() -> Path:
    """Returns the folder of the project's reports; outside a project a folder `reports` here."""
    from dml_core.config.loading import load_project_config

    if not DEFAULT_PARAMS.is_file():
        return Path("reports")
    return Path(load_project_config(DEFAULT_PARAMS).pipeline.sweep.reports_root)
