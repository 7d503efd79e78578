"""The verdict of a study in one plain sentence."""

from collections import Counter
from collections.abc import Sequence

from dml_core.analysis.claims import Judgement
from dml_core.analysis.summary import ArmSummary
from dml_core.studies.metrics import is_higher_better
from tasks.report_page.labels import name_metric, show_number, unit_of

_ONE_CLAIM = {
    "supported": "the run supports the paper's claim",
    "contradicted": "the run contradicts the paper's claim",
    "cannot tell": "the run cannot tell whether the paper's claim holds",
}


def make_headline(
    summaries: Sequence[ArmSummary], judgements: Sequence[Judgement], *, metric: str
) -> str:
    """Returns what the run says to the paper's claims, and which arm stands first."""
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
    """Returns how many claims were supported, contradicted, and could not be told."""
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
        return f", which cannot be told from {reference}"
    return f", {best.verdict} than {reference}"
