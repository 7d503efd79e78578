"""A study's answer in words: verdicts, claims, a table, and one headline."""

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from pydantic import BaseModel, ConfigDict

from dml_core.analysis.claims import Judgement
from dml_core.analysis.observations import Observations, answer_metric
from dml_core.analysis.summary import ArmSummary, render_markdown, summarize
from dml_core.studies.metrics import is_higher_better
from dml_core.studies.resolved import ResolvedStudy
from tasks.report_page.style import name_metric, show_number, unit_of

FILE_NAME = "answer.json"

COST_RESOLUTION = 0.02
"""The smallest relevant difference in cost, as a share of the baseline's."""


class Answer(BaseModel):
    """A study's question and its answer."""

    model_config = ConfigDict(frozen=True)

    study: str
    question: str
    metric: str
    """The metric of the verdicts, such as `test.recall_at_1`."""
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
    """A sentence that compares the result with the accepted one; not part of the report."""
    has_dropped: bool = False
    """Whether the result is significantly worse than the accepted one and was not accepted."""

    @property
    def text(self) -> str:
        """The verdicts, one a line."""
        return "\n".join(self.verdicts)

    @property
    def claims_text(self) -> str:
        """Each claim with its explanation below."""
        return "\n".join(f"{each['text']}\n  {each['explanation']}" for each in self.claims)


def summarize_scores(study: ResolvedStudy, observations: Observations) -> list[ArmSummary]:
    """Returns the summary of each arm by the study's metric, including arms without scores."""
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
    """Returns the answer in words, from the summaries and the judgements of the claims."""
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
    """Returns the answer in a report folder."""
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


_ONE_CLAIM = {
    "supported": "the run supports the paper's claim",
    "contradicted": "the run contradicts the paper's claim",
    "cannot tell": "the run cannot tell whether the paper's claim holds",
}


def make_headline(
    summaries: Sequence[ArmSummary], judgements: Sequence[Judgement], *, metric: str
) -> str:
    """Returns one sentence with the verdicts on the paper's claims and the best arm."""
    scored = [summary for summary in summaries if summary.mean is not None]
    if not scored:
        return "No arm has a score, so the question stays open."
    sentences = [_say_claims(judgements), _say_best(scored, metric)]
    missing = len(summaries) - len(scored)
    if missing:
        sentences.append(f"{missing} of {len(summaries)} arms have no score")
    text = "; ".join(filter(None, sentences))
    # A number and its unit stay on one line.
    return f"{text[:1].upper()}{text[1:]}.".replace(" %", "\N{NO-BREAK SPACE}%")


def count_verdicts(judgements: Sequence[Judgement]) -> dict[str, int]:
    """Returns how many claims are supported, contradicted and undecided."""
    counts = Counter(judgement.verdict for judgement in judgements)
    return {name: counts[name] for name in ("supported", "contradicted", "cannot tell")}


def _say_claims(judgements: Sequence[Judgement]) -> str:
    if not judgements:
        return ""
    if len(judgements) == 1:
        return _ONE_CLAIM[judgements[0].verdict]
    counts = count_verdicts(judgements)
    parts = [
        f"supports {counts['supported']}" if counts["supported"] else "",
        f"contradicts {counts['contradicted']}" if counts["contradicted"] else "",
        f"leaves {counts['cannot tell']} open" if counts["cannot tell"] else "",
    ]
    listed = [part for part in parts if part]
    joined = " and ".join(filter(None, [", ".join(listed[:-1]), listed[-1]]))
    return f"of the paper's {len(judgements)} claims the run {joined}"


def _say_best(scored: Sequence[ArmSummary], metric: str) -> str:
    higher = is_higher_better(metric)
    best = (max if higher else min)(scored, key=lambda summary: summary.mean or 0.0)
    unit = unit_of(metric)
    spread = ""
    if best.interval is not None:
        low, high = (show_number(bound, metric) for bound in best.interval)
        spread = f" (95 % interval {low} to {high})"
    place = "highest" if higher else "lowest"
    value = f"{show_number(best.mean, metric)}{unit.name}"
    return f"{best.arm} has the {place} {name_metric(metric)}, {value}{spread}{_relate(best)}"


def _relate(best: ArmSummary) -> str:
    if best.difference is None:
        return ", and is the baseline"
    reference = best.difference.reference
    if best.verdict == "cannot tell":
        return f", which cannot be distinguished from {reference}"
    return f", {best.verdict} than {reference}"
