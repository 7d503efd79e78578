"""Writes a study's report and records its evaluation."""

import csv
import json
from pathlib import Path
from typing import Any

from prefect import task

from dml_core.data.atomic_folder import replaced_folder
from dml_core.statistics.summary import ArmSummary
from dml_core.studies.scores_file import StudyScores, read_scores
from tasks.answer import (
    FILE_NAME,
    Answer,
    make_answer,
    read_answer_file,
    summarize_scores,
)
from tasks.context import StudyContext, StudyRequest, load_context
from tasks.report_page.figure import Point, draw_figure
from tasks.report_page.page import write_page

__all__ = ["Answer", "read_answer", "write_report"]


@task
def write_report(request: StudyRequest, compare_url: str) -> Answer:
    """Writes the page, the figure, metrics.json and the plots' numbers; twice is safe."""
    context = load_context(request)
    scores = read_scores(context.evaluate_folder)
    summaries = summarize_scores(context.study, scores)
    budget = json.loads((context.sweep_folder / "winners.json").read_text(encoding="utf-8"))
    answer = make_answer(context.study, summaries, budget).model_copy(
        update={
            "report": str(context.report_folder / "index.html"),
            "compare_url": compare_url,
        }
    )
    with replaced_folder(context.report_folder) as folder:
        _write_files(folder, context, answer, summaries, scores)
    return answer


def read_answer(context: StudyContext) -> Answer:
    """Returns the answer of a report that was written before."""
    return read_answer_file(context.report_folder)


def _write_files(
    folder: Path,
    context: StudyContext,
    answer: Answer,
    summaries: list[ArmSummary],
    scores: StudyScores,
) -> None:
    figure = context.study.definition.figure
    points = [_to_point(context, summary) for summary in summaries if summary.mean is not None]
    draw_figure(points, figure, title=answer.question, target=folder / "figure.png")
    (folder / FILE_NAME).write_text(answer.model_dump_json(indent=2) + "\n", encoding="utf-8")
    _write_metrics(folder / "metrics.json", summaries, metric=answer.metric)
    _write_plot(folder / "plots" / "scores.csv", scores, metric=answer.metric)
    content = {
        **answer.model_dump(),
        "source": context.study.definition.source,
        "headings": ["arm", "seeds", answer.metric, "95 % interval", "difference", "verdict"],
        "rows": [_to_row(summary) for summary in summaries],
        "facts": {
            "command": f"dml run {context.request.study}",
            "data hash": scores.data_hash,
            "split hash": scores.split_hash,
            "study digest": scores.digest,
        },
    }
    write_page(folder / "index.html", figure=folder / "figure.png", content=content)


def _to_point(context: StudyContext, summary: ArmSummary) -> Point:
    figure = context.study.definition.figure
    layer = context.study.get_arm(summary.arm).layer
    assert summary.mean is not None
    low, high = summary.interval or (summary.mean, summary.mean)
    return Point(
        arm=summary.arm,
        x=layer.get(figure.x, summary.arm),
        group=str(layer.get(figure.group, "")),
        mean=summary.mean,
        low=low,
        high=high,
    )


def _to_row(summary: ArmSummary) -> list[Any]:
    def show(value: float | None, sign: str = "") -> str:
        return "" if value is None else f"{value:{sign}.4f}"

    interval = " to ".join(show(bound) for bound in summary.interval or ())
    difference = show(summary.difference.mean, "+") if summary.difference else ""
    cells = [summary.num_seeds, show(summary.mean), interval, difference, summary.text]
    return [summary.arm, *cells]


def _write_metrics(path: Path, summaries: list[ArmSummary], *, metric: str) -> None:
    values = {summary.arm: {metric: summary.mean} for summary in summaries}
    path.write_text(json.dumps(values, indent=2, sort_keys=True) + "\n", encoding="utf-8")


def _write_plot(path: Path, scores: StudyScores, *, metric: str) -> None:
    path.parent.mkdir(parents=True)
    with open(path, "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["arm", "seed", metric])
        for arm, by_seed in sorted(scores.of_metric(metric).items()):
            writer.writerows([arm, seed, value] for seed, value in sorted(by_seed.items()))
