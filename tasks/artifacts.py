"""Shows the results of a run on its page in Prefect, as Markdown tables and links.

Each task adds a version to the artifact of its key; running one twice is safe.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from prefect import task
from prefect.artifacts import create_markdown_artifact

from dml_core.analysis.observations import answer_metric, load_observations
from tasks.report_page.answer import Answer
from tasks.study import StudyRequest, load_context
from tasks.tracking.identity import escape_markdown


class Markdown(str):
    """A text that is already Markdown, such as a link."""


COUNTS = ("spent", "finished", "pruned", "diverged", "collapsed", "failed")


@task(retries=2, retry_delay_seconds=[2, 10], timeout_seconds=120)
def show_datasets(request: StudyRequest, datasets: Sequence[dict[str, Any]]) -> None:
    """Shows the prepared datasets: images, refused images, hashes."""
    columns = list(datasets[0]) if datasets else ["dataset"]
    rows = [[dataset[column] for column in columns] for dataset in datasets]
    publish(f"data-{request.folder_name}", "What was prepared", render_table(columns, rows))


@task(retries=2, retry_delay_seconds=[2, 10], timeout_seconds=120)
def show_sweep(request: StudyRequest, folder: Path) -> None:
    """Shows each arm's budget and its best validation score."""
    winners = json.loads((folder / "winners.json").read_text(encoding="utf-8"))
    rows = [
        [arm, *(winner.get(name, "") for name in COUNTS), _show(winner.get("score"))]
        for arm, winner in winners.items()
    ]
    table = render_table(["arm", *COUNTS, "best validation score"], rows)
    trials = _link(folder / "trials.parquet")
    text = f"{table}\n- all trials: {trials}\n"
    publish(f"sweep-{request.folder_name}", "What the sweep spent", text)


@task(retries=2, retry_delay_seconds=[2, 10], timeout_seconds=120)
def show_scores(request: StudyRequest, path: Path) -> None:
    """Shows the score of every winner on the test classes, by arm and seed."""
    context = load_context(request)
    metric = answer_metric(context.study)
    by_arm = load_observations(context.sweep_folder, path.parent).scalars(metric)
    seeds = sorted({seed for scores in by_arm.values() for seed in scores})
    rows = [[arm, *(_show(scores.get(seed)) for seed in seeds)] for arm, scores in by_arm.items()]
    table = render_table(["arm", *(f"seed {seed}" for seed in seeds)], rows)
    text = f"{table}\n- all metrics: {_link(path)}\n"
    publish(f"scores-{request.folder_name}", metric, text)


@task(retries=2, retry_delay_seconds=[2, 10], timeout_seconds=120)
def show_answer(request: StudyRequest, answer: Answer) -> None:
    """Shows a study's answer, with links to its report and to the runs side by side."""
    links = f"- report: {_link(Path(answer.report))}\n- compare in MLflow: {answer.compare_url}\n"
    publish(f"answer-{request.folder_name}", answer.question, f"{answer.markdown}\n{links}")


@task(retries=2, retry_delay_seconds=[2, 10], timeout_seconds=120)
def show_run(
    requests: Sequence[StudyRequest], answers: Sequence[Answer], ran: Sequence[Sequence[str]]
) -> None:
    """Shows a whole run, one line a study: the stages that ran, the best arm, links.

    Args:
        requests: the studies.
        answers: their answers.
        ran: for each study the stages that ran.
    """
    rows = [
        [
            request.folder_name,
            ", ".join(stages) or "nothing, all was up to date",
            answer.best_arm,
            _link(Path(answer.report)),
            _link_comparison(answer),
        ]
        for request, answer, stages in zip(requests, answers, ran, strict=True)
    ]
    table = render_table(["study", "stages that ran", "best mean", "report", "MLflow"], rows)
    lines = [_escape(line) for answer in answers for line in answer.verdicts]
    verdicts = "\n".join(f"- {line}" for line in lines)
    name = requests[0].folder_name if len(requests) == 1 else "of several studies"
    publish(f"run-{name}", "What this run answered", f"{table}\n{verdicts}\n")


def render_table(columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """Returns a Markdown table; all cells but those of `Markdown` are escaped."""
    lines = [columns, ["---"] * len(columns), *rows]
    cells = [
        [cell if isinstance(cell, Markdown) else _escape(str(cell)) for cell in line]
        for line in lines
    ]
    return "".join(f"| {' | '.join(line)} |\n" for line in cells)


def artifact_key(name: str) -> str:
    """Returns a name as an artifact key for Prefect: lowercase letters, digits, dashes."""
    return "".join(c if c.isalnum() and c.isascii() else "-" for c in name.lower()).strip("-")


def publish(name: str, title: str, text: str) -> None:
    """Adds a version to the artifact of this name on the run's page."""
    shown = _escape(title)
    create_markdown_artifact(
        markdown=f"# {shown}\n\n{text}", key=artifact_key(name), description=shown
    )


def _escape(text: str) -> str:
    return escape_markdown(text, colon=r"\:")


def _link(path: Path) -> Markdown:
    return Markdown(f"[{_escape(str(path))}]({path.resolve().as_uri()})")


def _link_comparison(answer: Answer) -> Markdown:
    is_address = answer.compare_url.startswith("http")
    return Markdown(f"[compare]({answer.compare_url})" if is_address else "")


def _show(score: float | None) -> str:
    return "" if score is None else f"{score:.4f}"
