"""A study's answer: what is printed, recorded and shown."""

import json
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict

from dml_core.statistics.summary import ArmSummary, summarize
from dml_core.statistics.table import render_markdown
from dml_core.studies.resolved import ResolvedStudy
from dml_core.studies.scores_file import StudyScores

FILE_NAME = "answer.json"


class Answer(BaseModel):
    """The question and what the numbers say to it."""

    model_config = ConfigDict(frozen=True)

    study: str
    question: str
    metric: str
    """The metric that the verdicts go by."""
    verdicts: list[str]
    """One line an arm."""
    markdown: str
    """The table with intervals and differences."""
    budget: dict[str, dict[str, Any]]
    """By arm: trials spent, pruned, diverged, collapsed, failed, keys at a bound."""
    best_arm: str
    """The arm with the highest mean; not necessarily better than the others."""
    report: str = ""
    """The page."""
    compare_url: str = ""
    """The arms side by side in MLflow."""

    @property
    def text(self) -> str:
        """The verdicts, one a line."""
        return "\n".join(self.verdicts)


def answer_metric(study: ResolvedStudy) -> str:
    """Returns the test metric that a study's figure shows, without its `test.`."""
    return study.definition.figure.y.partition(".")[2]


def summarize_scores(study: ResolvedStudy, scores: StudyScores) -> list[ArmSummary]:
    """Returns the summary of each arm by the study's metric, arms without scores included."""
    metric = answer_metric(study)
    by_arm = scores.of_metric(metric)
    is_distance = metric.startswith("mean_label_distance")
    return summarize(
        {arm.name: by_arm.get(arm.name, {}) for arm in study.arms},
        baseline=study.baseline,
        references=study.references,
        higher_is_better=not is_distance,
        is_share=not is_distance,
    )


def make_answer(
    study: ResolvedStudy, summaries: list[ArmSummary], budget: dict[str, dict[str, Any]]
) -> Answer:
    """Puts the summaries into words."""
    metric = answer_metric(study)
    is_share = not metric.startswith("mean_label_distance")
    scored = [summary for summary in summaries if summary.mean is not None]
    best = max(scored, key=lambda summary: summary.mean or 0.0) if scored else None
    return Answer(
        study=study.name,
        question=study.definition.question,
        metric=metric,
        verdicts=[_say(summary, metric, is_share=is_share) for summary in summaries],
        markdown=render_markdown(summaries, metric=f"test.{metric}", is_share=is_share),
        budget=budget,
        best_arm=best.arm if best else "",
    )


def read_answer_file(folder: Path) -> Answer:
    """Returns the answer that a report folder holds."""
    return Answer.model_validate(json.loads((folder / FILE_NAME).read_text(encoding="utf-8")))


def _say(summary: ArmSummary, metric: str, *, is_share: bool) -> str:
    if summary.mean is None:
        return f"{summary.arm}: no score. {summary.text}"
    factor, unit = (100, " %") if is_share else (1, "")
    spread = ""
    if summary.interval is not None:
        low, high = (f"{factor * bound:.1f}" for bound in summary.interval)
        spread = f" ({low} to {high})"
    return f"{summary.arm}: {metric} {factor * summary.mean:.1f}{unit}{spread}, {summary.text}"
