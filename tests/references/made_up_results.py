"""Results of studies that nobody trained: files as the stages leave them, for tests of reports."""

import json
import math
from collections.abc import Collection
from dataclasses import asdict
from typing import Any

import numpy as np
from PIL import Image

from dml_core.config.loading import to_flat_dict
from dml_core.measures.class_scores import WORST_FILE, ClassScore, write_class_scores
from dml_core.measures.results import StudyScores, write_scores
from dml_core.studies.metrics import list_metrics
from dml_core.trials.spec import TrialRecord, TrialSpec
from dml_core.trials.table import write_trials
from dml_core.trials.winners import Winner
from tasks.study import StudyContext, StudyRequest, load_context

NUM_EPOCHS = 4
HOSTILE = "<script>document.title = 'broken'</script>"


def make_results(
    request: StudyRequest, *, missing: Collection[str] = (), reason: str = "it diverged"
) -> StudyContext:
    """Writes results of every arm of a study below the working directory; some arms have none.

    Args:
        request: the study; its file and params.yaml must be there.
        missing: arms without a winner.
        reason: why they have none.
    """
    context = load_context(request)
    study = context.study
    winners: dict[str, Winner] = {}
    records: list[TrialRecord] = []
    scores: dict[str, dict[int, dict[str, float]]] = {}
    for place, arm in enumerate(study.arms):
        if arm.name in missing:
            winners[arm.name] = Winner(
                arm.name, None, None, None, reason=reason, spent=3, diverged=2, failed=1
            )
            continue
        key = next(iter(arm.space), "")
        values = {name: dimension.corners()[0] for name, dimension in arm.space.items()}
        bounds: Any = {key: "low"} if key else {}
        winners[arm.name] = Winner(
            arm.name, values, 0.5, 0, spent=2, finished=1, pruned=1, at_bound=bounds
        )
        for spec in study.repeat_specs({arm.name: values}):
            records.append(_write_winner(context, spec, place))
            test = list_metrics(spec.config, "test")
            scores.setdefault(arm.name, {})[spec.config.seed] = {
                name: make_score(name, place, spec.config.seed) for name in test
            } | {"num_queries": 100.0}
    _write_sweep(context, winners, records)
    _write_evaluation(context, scores)
    return context


def make_score(metric: str, place: int, seed: int) -> float:
    """Returns a number that differs by metric, arm and seed, and is the same every time."""
    wave = math.sin(7.0 * place + len(metric))
    return 0.7 + 0.1 * wave + 0.004 * math.cos(5.0 * seed + 3 * place + len(metric))


def _write_winner(context: StudyContext, spec: TrialSpec, place: int) -> TrialRecord:
    folder = context.sweep_folder / "winners" / f"{spec.arm}-seed{spec.config.seed}"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(to_flat_dict(spec.config)))
    lines = [json.dumps(_make_epoch(spec, epoch, place)) for epoch in range(1, NUM_EPOCHS + 1)]
    (folder / "epochs.jsonl").write_text("\n".join(lines) + "\n")
    return TrialRecord(
        spec=spec, status="finished", reason="", epochs=NUM_EPOCHS, best_epoch=NUM_EPOCHS,
        score=0.5, validation={}, key=folder.name, train_seconds=4.0,
    )  # fmt: skip


def _make_epoch(spec: TrialSpec, epoch: int, place: int) -> dict[str, Any]:
    seed = spec.config.seed
    learnt = 1 - math.exp(-epoch / (1 + place % 4))
    names = list_metrics(spec.config, "validation")
    table = np.random.default_rng([seed, epoch, place]).random((6, 6)) / epoch
    return {
        "epoch": epoch,
        "num_epochs": NUM_EPOCHS,
        "train_loss": (3 + place) * (1 - learnt) + 0.2 + 0.01 * seed,
        "active_fraction": 1 - 0.5 * learnt,
        "diagnostics": {"synthetic_fraction": 0.8 * (1 - learnt) + 0.01 * seed},
        "train_seconds": 1.0 + 0.1 * seed + 0.2 * place,
        "validation": {name: learnt * make_score(name, place, seed) for name in names},
        "tables": {"hardest_distances": table.tolist()},
    }


def _write_sweep(
    context: StudyContext, winners: dict[str, Winner], records: list[TrialRecord]
) -> None:
    folder = context.sweep_folder
    (folder / "winners").mkdir(parents=True, exist_ok=True)
    plain = {arm: asdict(winner) for arm, winner in winners.items()}
    (folder / "winners.json").write_text(json.dumps(plain))
    (folder / "sweep.json").write_text(json.dumps({"code": "0123456789abcdef"}))
    write_trials(records, folder / "trials.parquet")


def _write_evaluation(
    context: StudyContext, scores: dict[str, dict[int, dict[str, float]]]
) -> None:
    folder, study = context.evaluate_folder, context.study
    write_scores(StudyScores(study.name, study.digest, "da7a", "5b117", scores), folder)
    arms = [(place, arm.name) for place, arm in enumerate(study.arms) if arm.name in scores]
    measures = {
        "scalars": {
            "cost.step_seconds": {
                arm: {str(r): 0.01 * (1 + 0.1 * place) + 1e-4 * r for r in range(4)}
                for place, arm in arms
            },
            "cost.memory_mib": {
                arm: {str(r): 100.0 + 8 * place for r in range(4)} for place, arm in arms
            },
        },
        "curves": {
            f"gradient.{side}": {
                arm: {
                    str(seed): [[x / 10, (x / 10) ** (1 + place) + 0.01 * seed] for x in range(11)]
                    for seed in study.seeds
                }
                for place, arm in arms
            }
            for side in ("positive", "negative")
        },
    }
    (folder / "measures.json").write_text(json.dumps(measures))
    noise = np.random.default_rng(0)
    Image.fromarray(noise.integers(0, 255, (90, 120, 3), np.uint8)).save(folder / "retrieval.png")
    names = ["plain", "$x$ & <b>", HOSTILE, "日本"]
    lines = [
        f'{3 * place + x:.3f},{y:.3f},"{name}"'
        for place, name in enumerate(names)
        for x, y in noise.normal(size=(10, 2))
    ]
    (folder / "embedding_map.csv").write_text("\n".join(["x,y,class", *lines]) + "\n")
    classes = [ClassScore(n, 4 + place, 4, place / 4, HOSTILE) for place, n in enumerate(names)]
    write_class_scores(classes, folder)
    Image.fromarray(noise.integers(0, 255, (90, 120, 3), np.uint8)).save(folder / WORST_FILE)
