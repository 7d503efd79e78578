"""dml history: the scores of a study over time."""

import json
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from flows.commands.terminal import (
    DEFAULT_PARAMS,
    JsonOption,
    ParamsOption,
    ProfileOption,
    StudyArgument,
    make_harmless,
    print_table,
    say,
)

if TYPE_CHECKING:
    from rich.table import Table

    from dml_core.analysis.history import Result

commands = typer.Typer()


@commands.command()
def history(
    study: StudyArgument,
    params: ParamsOption = DEFAULT_PARAMS,
    profile: ProfileOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show the scores of a study over time, by commit and data, and draw them."""
    from dml_core.analysis.history import history_file, read_history
    from tasks.report_page.pictures import draw_history
    from tasks.study import StudyRequest, load_context

    context = load_context(StudyRequest(study=study, profile=profile, params=str(params)))
    name, sweep = context.request.folder_name, context.project.pipeline.sweep
    results = read_history(history_file(Path(sweep.results_root), name))
    if as_json:
        print(json.dumps({"results": [each.model_dump(mode="json") for each in results]}, indent=2))
        return
    if not results:
        say(f"{name} has no history yet. Its first result starts it: dml run {study}")
        return
    print_table(_make_table(results))
    # Not in the report's own folder, which DVC tracks: another picture would make it stale.
    target = Path(sweep.reports_root) / ".history" / name
    drawn = draw_history(results, target, title=context.study.definition.question)
    say(f"drawn in {' and '.join(str(path) for path in drawn)}")


def _make_table(results: "list[Result]") -> "Table":
    from rich.table import Table

    table = Table()
    for column in ("time", "commit", "data", "champion", "score", "", "verdict", ""):
        table.add_column(column)
    for result in results:
        table.add_row(*(make_harmless(cell) for cell in _describe(result)))
    return table


def _describe(result: "Result") -> list[str]:
    from dml_core.studies.metrics import unit_of
    from tasks.report_page.pictures import champion_interval

    unit = unit_of(result.metric)
    low, mean, high = (unit.show(value) for value in champion_interval(result))
    return [
        result.time[:16].replace("T", " "),
        result.commit[:12] + ("+" if "changes" in result.commit else ""),
        result.data_hash[:12],
        result.champion,
        f"{mean}{unit.name}",
        f"{low} to {high}",
        result.verdict,
        "accepted" if result.accepted else "",
    ]
