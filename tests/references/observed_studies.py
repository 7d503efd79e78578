"""Studies with made-up results, for tests of what is said of them."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from dml_core.analysis.observations import Observations, Training
from dml_core.studies.resolved import ResolvedStudy
from tests.references.written_studies import read_study

GRID = "question: q\ngrid: {sampler.batch_size: [30, 60, 90]}\n"
"""Arms batch_size-30, batch_size-60, batch_size-90."""


def read_claims(
    folder: Path, *claims: str, more: str = "", profile: str | None = None
) -> ResolvedStudy:
    """Returns a study of three batch sizes with claims, each a YAML mapping without its text."""
    lines = [f"  - {{text: claim {place}, {claim}}}" for place, claim in enumerate(claims)]
    text = "\n".join([GRID + more, "claims:", *lines])
    return read_study(folder, text, profile=profile)


def observe(
    scores: Mapping[str, Sequence[float | None]], metric: str = "recall_at_1"
) -> Observations:
    """Returns test scores by arm, a number for each seed from 0; None where there is none."""
    return Observations(
        scores={
            arm: {seed: {metric: value} for seed, value in enumerate(values) if value is not None}
            for arm, values in scores.items()
        }
    )


def make_training(*epochs: Mapping[str, object], selected: int = -1) -> Training:
    """Returns a training of these epochs, 2 s each; `selected` is the place of the judged one."""
    whole = [
        {"epoch": number, "train_seconds": 2.0, "validation": {}, **epoch}
        for number, epoch in enumerate(epochs, start=1)
    ]
    return Training(whole, whole[selected])
