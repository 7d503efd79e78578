"""dml history: what a study scored over time."""

import json
from pathlib import Path

from rich.table import Table

from dml_core.analysis.history import Result, history_file, read_history
from dml_core.studies.metrics import unit_of
from flows.commands.terminal import print_table, say
from flows.harmless_text import make_harmless
from tasks.report_page.pictures import champion_interval, draw_history
from tasks.study import StudyRequest, load_context


def run_history(study: str, params: Path, *, profile: str | None, as_json: bool) -> None:
    """Prints every result of a study and draws them beside its report."""
    context = load_context(StudyRequest(study=study, profile=profile, params=str(params)))
    name, sweep = context.request.folder_name, context.project.pipeline.sweep
    results = read_history(history_file(Path(sweep.results_root), name))
    if as_json:
        print(json.dumps({"results": [each.model_dump(mode="json") for each in results]}, indent=2))
        return
    if not results:
        say(f"{name} has no history yet. Its first result makes it: dml run {study}")
        return
    print_table(_make_table(results))
    # Not in the report's own folder, which DVC tracks: a drawing more would make it stale.
    target = Path(sweep.reports_root) / ".history" / name
    drawn = draw_history(results, target, title=context.study.definition.question)
    say(f"drawn in {' and '.join(str(path) for path in drawn)}")


def _make_table(results: list[Result]) -> Table:
    table = Table()
    for column in ("time", "commit", "data", "champion", "score", "", "verdict", ""):
        table.add_column(column)
    for result in results:
        table.add_row(*(make_harmless(cell) for cell in _describe(result)))
    return table


def _describe(result: Result) -> list[str]:
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
