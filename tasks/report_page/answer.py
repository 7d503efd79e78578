"""A study's answer in words: verdicts, claims, a table, and one headline."""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict

from dml_core.analysis.claims import Judgement
from dml_core.analysis.factors import FactorEffect
from dml_core.analysis.looks import find_open_arms
from dml_core.analysis.observations import answer_metric
from dml_core.analysis.summary import ArmSummary, StudySummary, render_markdown
from dml_core.studies.resolved import ResolvedStudy
from tasks.report_page.style import spell_metric, unit_of

FILE_NAME = "answer.json"
RISING = 0.01
"""A training that gains a point or more in its last third was cut short."""
READING = (
    "Means over the seeds with 95 % intervals. A verdict (Welch's t-test) is given where a "
    "difference is among the discoveries of all pairs of arms: at most 5 % of them are false, and "
    "a study without any difference gives a verdict in at most 5 % of cases. It does not depend on "
    "which arm is called the baseline. No difference worth having: two one-sided tests place it "
    "within the smallest effect."
)
"""How to read the table of arms."""


class Answer(BaseModel):
    """A study's question and its answer."""

    model_config = ConfigDict(frozen=True)

    study: str
    question: str
    metric: str
    """The metric that the verdicts go by, such as `test.recall_at_1`."""
    recommendation: str = ""
    """Which arm to use, in one or two sentences."""
    verdicts: list[str]
    """One line an arm."""
    factors: list[str] = []
    """One line for the pooled effect of each value of each factor."""
    remedy: str = ""
    """The command that adds seeds where a verdict or a claim is open."""
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
        """The recommendation, the verdicts and the pooled effects, one a line, and the remedy."""
        lines = [self.recommendation, *self.verdicts, *self.factors, self.remedy]
        return "\n".join(filter(None, lines))

    @property
    def claims_text(self) -> str:
        """Each claim with its explanation below."""
        return "\n".join(f"{each['text']}\n  {each['explanation']}" for each in self.claims)


def make_answer(
    study: ResolvedStudy,
    summary: StudySummary,
    budget: dict[str, dict[str, Any]],
    judgements: Sequence[Judgement] = (),
    late_gains: Mapping[str, float] | None = None,
    *,
    command: str = "",
) -> Answer:
    """Puts the summary and the judgements of the claims into words.

    Args:
        study: the question.
        summary: what the scores say of the arms.
        budget: by arm, how its search was spent.
        judgements: of the claims.
        late_gains: from `find_late_gains`.
        command: adds seeds where a verdict is open; by default that of the study itself.
    """
    metric = answer_metric(study)
    gains = late_gains or {}
    return Answer(
        study=study.name,
        question=study.definition.question,
        metric=metric,
        recommendation=summary.recommendation.text,
        verdicts=[
            *(
                say_arm(row, metric, budget.get(row.arm)) + say_late_gain(gains.get(row.arm, 0.0))
                for row in summary.rows
            ),
            *_say_untrained(summary, metric),
        ],
        factors=[say_factor(effect, metric) for effect in summary.factors],
        remedy=say_remedy(command or f"dml run {study.name} --until-decided", summary, judgements),
        claims=[
            {"text": each.text, "verdict": each.verdict, "explanation": each.explanation}
            for each in judgements
        ],
        markdown=render_markdown(summary, metric=metric),
        budget=budget,
        best_arm=summary.recommendation.best,
    )


def read_answer_file(folder: Path) -> Answer:
    """Returns the answer in a report folder."""
    return Answer.model_validate(json.loads((folder / FILE_NAME).read_text(encoding="utf-8")))


def say_arm(row: ArmSummary, metric: str, budget: Mapping[str, Any] | None = None) -> str:
    """Returns the score of an arm, its interval and its verdict as one line."""
    if row.mean is None:
        return f"{row.arm}: no score. {row.text}"
    unit, spread = unit_of(metric), ""
    if row.interval is not None:
        low, high = (unit.show(bound) for bound in row.interval)
        spread = f" ({low} to {high})"
    value = f"{unit.show(row.mean)}{unit.name}{spread}"
    bounds = (budget or {}).get("at_bound") or {}
    edges = "".join(f"; {key} at its {bound} bound" for key, bound in bounds.items())
    return f"{row.arm}: {spell_metric(metric)} {value}, {row.text}{edges}"


def say_late_gain(gain: float) -> str:
    """Returns a note for an arm that was still rising when its training ended; else nothing."""
    if gain < RISING:
        return ""
    return (
        f"; still rising (+{100 * gain:.1f} points of validation in the last third of its epochs)"
    )


def _say_untrained(summary: StudySummary, metric: str) -> list[str]:
    if summary.untrained is None:
        return []
    unit = summary.unit
    value = f"{unit.show(summary.untrained.score)}{unit.name}"
    return [f"{summary.untrained.name}: {spell_metric(metric)} {value}, no training"]


def say_remedy(command: str, summary: StudySummary, judgements: Sequence[Judgement]) -> str:
    """Returns how to decide what is open; nothing where the recommendation already says it."""
    if summary.recommendation.kind == "open" or not find_open_arms(summary, judgements):
        return ""
    return f"More seeds would help to decide what is open: {command}"


def say_factor(effect: FactorEffect, metric: str) -> str:
    """Returns the pooled effect of one value of a factor as a sentence."""
    unit = unit_of(metric)
    low, high = (unit.show_difference(bound) for bound in effect.interval)
    size = f"{unit.show_difference(effect.difference)}{unit.difference_name}, {low} to {high}"
    words = {
        "better": f"better than {effect.best}",
        "worse": f"worse than {effect.best}",
        "no difference": f"no difference worth having to {effect.best}",
        "cannot tell": f"cannot tell from {effect.best} yet",
    }
    return (
        f"{effect.key} {effect.value}: {words[effect.verdict]} ({size}), "
        f"pooled over {effect.num_pairs} pairs of arms"
    )


_ONE_CLAIM = {
    "supported": "the run supports the paper's claim",
    "contradicted": "the run contradicts the paper's claim",
    "cannot tell": "the run cannot tell whether the paper's claim holds",
}


def make_headline(
    summary: StudySummary, judgements: Sequence[Judgement], *, remedy: str = ""
) -> str:
    """Returns the recommendation, what the run says to the paper's claims, and the remedy."""
    sentences = [summary.recommendation.text]
    if claims := _say_claims(judgements):
        sentences.append(f"{claims[:1].upper()}{claims[1:]}.")
    if remedy:
        sentences.append(f"{remedy}.")
    missing = sum(row.mean is None for row in summary.rows)
    if missing and missing < len(summary.rows):
        sentences.append(f"{missing} of {len(summary.rows)} arms have no score.")
    # A number and its unit stay on one line.
    return " ".join(sentences).replace(" %", "\N{NO-BREAK SPACE}%")


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
