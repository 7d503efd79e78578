"""Chooses the trained model of a study that is exported or searched with."""

from dataclasses import dataclass
from pathlib import Path

from dml_core.data.prepared_info import hash_file
from dml_core.measures.results import (
    SCORES_FILE,
    WinnerFolder,
    choose_seed,
    list_winners,
    read_scores,
)
from tasks.model_facts import ModelFacts, collect_model_facts
from tasks.report_page.answer import FILE_NAME as ANSWER_FILE
from tasks.report_page.answer import read_answer_file
from tasks.report_page.tables import make_command
from tasks.study import StudyContext


@dataclass(frozen=True)
class ChosenModel:
    """A trained model of a study."""

    context: StudyContext
    winner: WinnerFolder
    is_recommended: bool
    """Whether its arm is the one that the study's answer recommends."""

    @property
    def name(self) -> str:
        """Arm and seed, as in `triplet-seed0`."""
        return f"{self.winner.arm}-seed{self.winner.seed}"

    @property
    def checkpoint(self) -> Path:
        """Its file of weights."""
        return self.winner.path / "checkpoint.pt"

    def digest(self) -> str:
        """Returns the sha256 of the checkpoint, by which the model is known."""
        return hash_file(self.checkpoint)

    def collect_facts(self) -> ModelFacts:
        """Returns its scores, data and settings."""
        folder = self.context.evaluate_folder
        scores = read_scores(folder) if (folder / SCORES_FILE).is_file() else None
        return collect_model_facts(self.context, self.winner, scores)


def choose_model(
    context: StudyContext, *, arm: str | None = None, seed: int | None = None
) -> ChosenModel:
    """Returns a model of a study: by default the recommended arm's, with its best seed.

    The best seed is the one with the best validation score; the test classes choose nothing here
    but the recommended arm, as in the study's answer.

    Raises:
        ValueError: where the study has no results, or no such arm or seed.
    """
    winners = list_winners(context.sweep_folder / "winners")
    if not winners:
        raise ValueError(
            f"study {context.request.folder_name} has no trained models yet. "
            f"Run: {make_command(context.request)}"
        )
    recommended = _read_recommended(context)
    if arm is not None:
        context.study.get_arm(arm)
    chosen = arm or recommended
    if not chosen:
        raise ValueError(
            f"study {context.request.folder_name} has no answer yet, so no arm is recommended. "
            f"Run: {make_command(context.request)}, or name an arm with --arm: "
            f"{', '.join(dict.fromkeys(winner.arm for winner in winners))}"
        )
    own = [winner for winner in winners if winner.arm == chosen]
    if not own:
        trained = ", ".join(dict.fromkeys(winner.arm for winner in winners))
        raise ValueError(
            f"arm {chosen!r} of study {context.request.folder_name} has no trained model, because "
            f"no try of it finished. Arms with one: {trained}."
        )
    return ChosenModel(context, _choose_seed(own, seed), chosen == recommended)


def _read_recommended(context: StudyContext) -> str:
    if not (context.report_folder / ANSWER_FILE).is_file():
        return ""
    return read_answer_file(context.report_folder).best_arm


def _choose_seed(winners: list[WinnerFolder], seed: int | None) -> WinnerFolder:
    if seed is None:
        return choose_seed(winners)
    found = [winner for winner in winners if winner.seed == seed]
    if not found:
        seeds = ", ".join(str(winner.seed) for winner in winners)
        raise ValueError(
            f"arm {winners[0].arm!r} was not trained with seed {seed}. Its seeds: {seeds}."
        )
    return found[0]
