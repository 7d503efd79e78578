"""Which arms get more seeds after a look at the results: those whose verdict is open."""

from collections.abc import Mapping, Sequence

from dml_core.analysis.claims import Judgement
from dml_core.analysis.summary import StudySummary
from dml_core.studies.added_seeds import AddedSeeds
from dml_core.studies.resolved import ResolvedStudy


def find_open_arms(summary: StudySummary, judgements: Sequence[Judgement] = ()) -> set[str]:
    """Returns the arms that more seeds would help to decide.

    These are both arms of every comparison of the table that is open, the best arm with those that
    cannot be told from it, and the arms of open claims. An arm without a score gets no seeds.
    """
    scored = {row.arm for row in summary.rows if row.mean is not None}
    found: set[str] = set()
    for row in summary.rows:
        pair = row.comparison
        if pair is not None and pair.verdict == "cannot tell":
            found |= {pair.left, pair.right}
    if summary.recommendation.undecided:
        found |= {summary.recommendation.best, *summary.recommendation.undecided}
    for judgement in judgements:
        found |= set(judgement.open_arms)
    return found & scored


def plan_next_look(
    study: ResolvedStudy,
    summary: StudySummary,
    judgements: Sequence[Judgement] = (),
    *,
    most_seeds: int,
) -> AddedSeeds | None:
    """Returns the seeds of a study for its next look; None where nothing is open or none is left.

    Args:
        study: the study, with its looks planned.
        summary: of all seeds so far.
        judgements: of its claims.
        most_seeds: no arm gets more seeds than this.
    """
    counts = count_seeds(study)
    return study.added.grow(
        find_open_arms(summary, judgements), listed=study.seeds, counts=counts, most=most_seeds
    )


def count_seeds(study: ResolvedStudy) -> Mapping[str, int]:
    """Returns how many seeds each arm has."""
    return {arm.name: len(study.seeds_of(arm.name)) for arm in study.arms}


def list_new_trials(study: ResolvedStudy, planned: AddedSeeds) -> dict[str, int]:
    """Returns how many trials a look adds, by arm."""
    return {
        arm.name: len(set(planned.seeds.get(arm.name, ())) - set(study.seeds_of(arm.name)))
        for arm in study.arms
    }
