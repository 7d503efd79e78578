"""What a sweep leaves: the table of trials and the winners with their checkpoints."""

import json
import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from dml_core.config.loading import to_flat_dict
from dml_core.data.atomic_folder import folder_lock, replaced_folder
from dml_core.studies.resolved import ResolvedStudy
from dml_core.training.checkpoint import (
    DamagedCheckpoint,
    checkpoint_path,
    load_checkpoint,
    save_checkpoint,
)
from dml_core.trials.spec import TrialRecord
from dml_core.trials.table import write_trials
from dml_core.trials.winners import Winner


@dataclass(frozen=True)
class SweepResult:
    """Everything a sweep found out."""

    search_records: list[TrialRecord]
    winners: dict[str, Winner]
    repeat_records: list[TrialRecord]
    folder: Path
    """Where trials.parquet and the winners are."""
    num_shared: int = 0
    """Trials that were not trained here, since another study had trained the same."""


def write_sweep(
    study: ResolvedStudy, result: SweepResult, *, working_folder: Path, versions: Mapping[str, Any]
) -> None:
    """Writes a sweep's folder whole or not at all; an older one stays until then.

    It gets trials.parquet, winners.json (by arm), sweep.json (what the sweep was made of) and
    `winners/<arm>-seed<k>/` with checkpoint.pt, epochs.jsonl and config.json.
    """
    with folder_lock(result.folder), replaced_folder(result.folder) as partial:
        write_trials([*result.search_records, *result.repeat_records], partial / "trials.parquet")
        _write_json(
            partial / "winners.json",
            {arm: asdict(winner) for arm, winner in result.winners.items()},
        )
        _write_json(partial / "sweep.json", _describe(study, result, versions))
        (partial / "winners").mkdir()
        for record in result.repeat_records:
            if record.status == "finished":
                _copy_winner(record, working_folder, partial / "winners")


def _describe(
    study: ResolvedStudy, result: SweepResult, versions: Mapping[str, Any]
) -> dict[str, Any]:
    is_ordered = study.searcher == "tpe" or study.scheduler.name == "asha"
    return {
        "study": study.name,
        "digest": study.digest,
        "searcher": study.searcher,
        "scheduler": study.scheduler.name,
        "order_matters": is_ordered,
        "shared_trials": result.num_shared,
        "note": (
            "tpe and asha decide by what has ended so far: another order of the same trials may "
            "lead to another choice."
            if is_ordered
            else "every run of this sweep makes the same trials with the same results."
        ),
        **versions,
    }


def _copy_winner(record: TrialRecord, working_folder: Path, winners: Path) -> None:
    source, spec = working_folder / record.folder, record.spec
    target = winners / f"{spec.arm}-seed{spec.config.seed}"
    target.mkdir()
    try:
        # No earlier one will do: the winner's scores are those of the last.
        checkpoint = load_checkpoint(checkpoint_path(source / "checkpoints", record.epochs))
    except (DamagedCheckpoint, FileNotFoundError) as error:
        raise ValueError(
            f"trial {spec.trial_id} finished, but its last checkpoint was lost: {error} Run the "
            "same command again, which trains its last epochs again from the checkpoint before."
        ) from error
    # A node may have read its data elsewhere; the winner speaks of the study's own paths.
    save_checkpoint(replace(checkpoint, config=spec.config), target / "checkpoint.pt")
    shutil.copyfile(source / "epochs.jsonl", target / "epochs.jsonl")
    _write_json(target / "config.json", to_flat_dict(spec.config))


def _write_json(path: Path, value: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=2, sort_keys=True) + "\n", encoding="utf-8")
