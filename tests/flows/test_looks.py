"""The looks of a run within a budget; stages that the test plays, in no time."""

from contextlib import nullcontext
from types import SimpleNamespace

import pytest

from flows import ablation
from tasks.budget import BudgetSpent, SeedBudget

SPENT = BudgetSpent("not enough time for an answer")


class Run:
    """A study whose sweeps end as told, and what the loop over its looks did."""

    def __init__(self, monkeypatch, *, sweeps, has_earlier):
        self.heard = []
        self.sweeps = iter(sweeps)
        self.request = SimpleNamespace(folder_name="asked", profile=None)
        context = SimpleNamespace(working_folder=None, study=SimpleNamespace(num_repeats=4))
        log = SimpleNamespace(write=lambda *_, **__: None)
        played = {
            "load_context": lambda request: context,
            "logged_run": lambda *_, **__: nullcontext(log),
            "describe_commit": lambda folder: "",
            "run_stage": self.run_stage,
            "add_seeds": lambda request, budget: self.hear("more seeds"),
            "take_back_seeds": lambda request, spent: self.hear("back") and has_earlier,
            "restore_sweep_record": lambda request: self.hear("record"),
            "track_study": lambda request: None,
            "pin_look": lambda run: run,
        }
        for name, stand_in in played.items():
            monkeypatch.setattr(ablation, name, stand_in)

    def hear(self, word):
        self.heard.append(word)
        return True

    def run_stage(self, name, run, log, *, show, is_forced, budget):
        if name != "sweep":
            return False
        self.heard.append(f"sweep{' forced' if is_forced else ''}")
        if (error := next(self.sweeps, None)) is not None:
            raise error
        return True

    def go(self, *, force=False):
        budget = SeedBudget(minutes=10, reserve_seconds=40)
        return ablation.run_stages(self, show="none", force=force, budget=budget)[1]


def test_a_look_without_time_for_its_trainings_ends_with_the_answer_of_the_one_before(monkeypatch):
    run = Run(monkeypatch, sweeps=[None, SPENT, None], has_earlier=True)
    assert run.go(force=True) == ["sweep", "sweep"]
    assert run.heard == ["sweep forced", "more seeds", "sweep", "back", "sweep", "record"]


@pytest.mark.parametrize("has_earlier", [False, True])
def test_a_study_without_time_for_its_first_answer_says_so(monkeypatch, has_earlier):
    # Also where another version of the study has left seeds: then its sweep is stale again.
    run = Run(monkeypatch, sweeps=[SPENT, SPENT, SPENT], has_earlier=has_earlier)
    calls = iter([has_earlier, False])
    monkeypatch.setattr(ablation, "take_back_seeds", lambda *_: next(calls))
    with pytest.raises(BudgetSpent, match="not enough time for an answer"):
        run.go()
    assert run.heard == ["sweep"] * (1 + has_earlier)
