"""A study's answer: what is printed, recorded and shown."""

import json
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from pydantic import BaseModel, ConfigDict

from dml_core.analysis.claims import Judgement
from dml_core.analysis.observations import Observations, answer_metric
from dml_core.analysis.summary import ArmSummary, render_markdown, summarize
from dml_core.studies.metrics import is_higher_better, unit_of
from dml_core.studies.resolved import ResolvedStudy

FILE_NAME = "answer.json"

COST_RESOLUTION = 0.02
"""The difference in cost that one would like to tell, as a share of the baseline's."""


class Answer(BaseModel):
    """The question and what the numbers say to it."""

    model_config = ConfigDict(frozen=True)

    study: str
    question: str
    metric: str
    """The metric that the verdicts go by, such as `test.recall_at_1`."""
    verdicts: list[str]
    """One line an arm."""
    claims: list[dict[str, str]] = []
    """For each claim of the source its `text`, the `verdict` (supported, contradicted, cannot
    tell) and an `explanation` with the numbers."""
    markdown: str
    """The table with intervals and differences."""
    budget: dict[str, dict[str, Any]]
    """By arm: trials spent, pruned, diverged, collapsed, failed, keys at a bound."""
    best_arm: str
    """The arm with the best mean; not necessarily better than the others."""
    report: str = ""
    """The page."""
    compare_url: str = ""
    """The arms side by side in MLflow."""
    watch: str = ""
    """How the result compares with the accepted one, in a sentence; not part of the report."""
    has_dropped: bool = False
    """Whether it is significantly worse than that and was not accepted."""

    @property
    def text(self) -> str:
        """The verdicts, one a line."""
        return "\n".join(self.verdicts)

    @property
    def claims_text(self) -> str:
        """Each claim, and below it what the numbers say to it."""
        return "\n".join(f"{each['text']}\n  {each['explanation']}" for each in self.claims)


def summarize_scores(study: ResolvedStudy, observations: Observations) -> list[ArmSummary]:
    """Returns the summary of each arm by the study's metric, arms without scores included."""
    metric = answer_metric(study)
    by_arm, unit = observations.scalars(metric), unit_of(metric)
    resolution = 0.005
    if metric.startswith("cost.") and study.baseline in by_arm:
        resolution = COST_RESOLUTION * fmean(by_arm[study.baseline].values())
    return summarize(
        {arm.name: by_arm.get(arm.name, {}) for arm in study.arms},
        baseline=study.baseline,
        references=study.references,
        resolution=resolution,
        resolution_text=f"{unit.factor * resolution:.3g}{unit.difference_name}",
        higher_is_better=is_higher_better(metric),
        is_share=unit.is_share,
    )


def make_answer(
    study: ResolvedStudy,
    summaries: list[ArmSummary],
    budget: dict[str, dict[str, Any]],
    judgements: Sequence[Judgement] = (),
) -> Answer:
    """Puts the summaries and the judgements of the claims into words."""
    metric = answer_metric(study)
    return Answer(
        study=study.name,
        question=study.definition.question,
        metric=metric,
        verdicts=[_say(summary, metric) for summary in summaries],
        claims=[
            {"text": each.text, "verdict": each.verdict, "explanation": each.explanation}
            for each in judgements
        ],
        markdown=render_markdown(summaries, metric=metric, is_share=unit_of(metric).is_share),
        budget=budget,
        best_arm=_find_best(summaries, higher_is_better=is_higher_better(metric)),
    )


def read_answer_file(folder: Path) -> Answer:
    """Returns the answer that a report folder holds."""
    return Answer.model_validate(json.loads((folder / FILE_NAME).read_text(encoding="utf-8")))


def _find_best(summaries: Sequence[ArmSummary], *, higher_is_better: bool) -> str:
    means = {summary.arm: summary.mean for summary in summaries if summary.mean is not None}
    if not means:
        return ""
    choose = max if higher_is_better else min
    return choose(means, key=lambda arm: means[arm])


def _say(summary: ArmSummary, metric: str) -> str:
    if summary.mean is None:
        return f"{summary.arm}: no score. {summary.text}"
    unit, spread = unit_of(metric), ""
    if summary.interval is not None:
        low, high = (unit.show(bound) for bound in summary.interval)
        spread = f" ({low} to {high})"
    value = f"{unit.show(summary.mean)}{unit.name}{spread}"
    return f"{summary.arm}: {metric.removeprefix('test.')} {value}, {summary.text}"
