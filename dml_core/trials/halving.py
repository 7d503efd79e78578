"""Asynchronous successive halving: which trials continue to their next epochs."""

from collections import defaultdict

import numpy as np


class SuccessiveHalving:
    """Judges trials at growing numbers of epochs, each only against those of its own group.

    A trial that reaches a rung continues when its score is among the best 1/reduction_factor of
    those that reached the rung so far, itself included (Li et al. 2020, the stopping rule). The
    first trial at a rung always continues. A group is an arm and a fold: arms never take budget
    from each other.
    """

    def __init__(self, *, grace_epochs: int, reduction_factor: int) -> None:
        if grace_epochs < 1 or reduction_factor < 2:
            raise ValueError(
                "successive halving needs grace_epochs >= 1 and reduction_factor >= 2. "
                f"Got {grace_epochs} and {reduction_factor}."
            )
        self._grace_epochs = grace_epochs
        self._reduction_factor = reduction_factor
        # (group, milestone) -> trial -> score
        self._rungs: dict[tuple[str, int], dict[str, float]] = defaultdict(dict)
        self._verdicts: dict[tuple[str, str, int], bool] = {}

    def milestones(self, num_epochs: int) -> list[int]:
        """Returns the epochs at which a trial is judged; its last epoch is not among them."""
        found, milestone = [], self._grace_epochs
        while milestone < num_epochs:
            found.append(milestone)
            milestone *= self._reduction_factor
        return found

    def expected_epochs(
        self, num_trials: int, *, num_epochs: int, validate_every: int = 1
    ) -> float:
        """Returns the epochs that the trials of a group are expected to run in all.

        Assumes that the trials reach each rung in an order that does not depend on their scores,
        which all differ. The k-th trial at a rung is then among the best max(1, k // factor) of k
        with that number over k as probability, and the sum over k is the expected number that
        continues. Between whole numbers of trials it is interpolated. A search that improves from
        try to try, as tpe does, prunes fewer; one whose first try is the best prunes more.

        Example:
            3 trials of 21 epochs with a rung at 7 and a factor of 3: 1 + 1/2 + 1/3 trials
            continue, so 3 * 7 + 11/6 * 14 = 46.7 of 63 epochs run.
        """
        places = np.arange(1, num_trials + 1)
        chances = np.maximum(1, places // self._reduction_factor) / places
        continuing = np.concatenate([[0.0], np.cumsum(chances)])
        judged = {-(-m // validate_every) * validate_every for m in self.milestones(num_epochs)}
        running, total, before = float(num_trials), 0.0, 0
        for epoch in sorted({min(each, num_epochs) for each in judged} | {num_epochs}):
            total += running * (epoch - before)
            running = float(np.interp(running, np.arange(num_trials + 1), continuing))
            before = epoch
        return total

    def note(
        self, group: str, trial_id: str, *, epoch: int, num_epochs: int, score: float | None
    ) -> None:
        """Enters a score of an earlier process into its rungs without judging a trial."""
        if score is not None:
            for milestone in self._new_milestones(group, trial_id, epoch, num_epochs):
                self._rungs[group, milestone][trial_id] = score

    def is_at_rung(self, group: str, trial_id: str, *, epoch: int, num_epochs: int) -> bool:
        """Returns whether `judge` would enter a score of this epoch into a rung."""
        return bool(self._new_milestones(group, trial_id, epoch, num_epochs))

    def judge(
        self, group: str, trial_id: str, *, epoch: int, num_epochs: int, score: float | None
    ) -> bool:
        """Returns whether a trial continues after an epoch; a second call returns the same.

        A rung that falls on an epoch without validation is judged at the next one with it.
        """
        if score is not None:
            for milestone in self._new_milestones(group, trial_id, epoch, num_epochs):
                rung = self._rungs[group, milestone]
                rung[trial_id] = score
                self._verdicts[group, trial_id, milestone] = self._is_among_best(rung, score)
        reached = [m for m in self.milestones(num_epochs) if m <= epoch]
        return all(self._verdicts.get((group, trial_id, m), True) for m in reached)

    def _new_milestones(self, group: str, trial_id: str, epoch: int, num_epochs: int) -> list[int]:
        return [
            milestone
            for milestone in self.milestones(num_epochs)
            if milestone <= epoch and trial_id not in self._rungs[group, milestone]
        ]

    def _is_among_best(self, rung: dict[str, float], score: float) -> bool:
        places = max(1, len(rung) // self._reduction_factor)
        return score >= sorted(rung.values(), reverse=True)[places - 1]
