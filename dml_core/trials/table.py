"""trials.parquet: one row a trial, written the same for the same trials."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from dml_core.trials.spec import TrialRecord, spec_from_plain

VALIDATION_PREFIX = "validation."

_COLUMNS = pa.schema(
    [
        ("trial_id", pa.string()),
        ("study", pa.string()),
        ("arm", pa.string()),
        ("phase", pa.string()),
        ("number", pa.int64()),
        ("fold", pa.int64()),
        ("seed", pa.int64()),
        ("status", pa.string()),
        ("reason", pa.string()),
        ("epochs", pa.int64()),
        ("best_epoch", pa.int64()),
        ("score", pa.float64()),
        ("values", pa.string()),
        ("config", pa.string()),
        ("key", pa.string()),
        ("train_seconds", pa.float64()),
        ("resumed", pa.int64()),
    ]
)


def write_trials(records: Sequence[TrialRecord], path: Path) -> None:
    """Writes trials.parquet; rows in the order given, a column for each validation metric.

    `values` and `config` are JSON. A metric that a trial lacks is null.
    """
    metrics = sorted({name for record in records for name in record.validation})
    extra = [pa.field(VALIDATION_PREFIX + name, pa.float64()) for name in metrics]
    rows = [_to_row(record, metrics) for record in records]
    table = pa.Table.from_pylist(rows, schema=pa.schema([*_COLUMNS, *extra]))
    pq.write_table(table, path)


def read_trials(path: Path) -> list[TrialRecord]:
    """Returns the records of a trials.parquet."""
    return [_from_row(row) for row in pq.read_table(path).to_pylist()]


def _to_row(record: TrialRecord, metrics: Sequence[str]) -> dict[str, Any]:
    spec = record.spec
    row = {
        "trial_id": spec.trial_id,
        "study": spec.study,
        "arm": spec.arm,
        "phase": spec.phase,
        "number": spec.number,
        "fold": spec.config.data.fold,
        "seed": spec.config.seed,
        "status": record.status,
        "reason": record.reason,
        "epochs": record.epochs,
        "best_epoch": record.best_epoch,
        "score": record.score,
        "values": json.dumps(spec.values, sort_keys=True),
        "config": json.dumps(spec.config.model_dump(mode="json"), sort_keys=True),
        "key": record.key,
        "train_seconds": record.train_seconds,
        "resumed": record.resumed,
    }
    return row | {VALIDATION_PREFIX + name: record.validation.get(name) for name in metrics}


def _from_row(row: dict[str, Any]) -> TrialRecord:
    plain = {key: row[key] for key in ("trial_id", "study", "arm", "phase", "number")}
    plain |= {"values": json.loads(row["values"]), "config": json.loads(row["config"])}
    kept = ("status", "reason", "epochs", "best_epoch", "score")
    validation = {
        key.removeprefix(VALIDATION_PREFIX): value
        for key, value in row.items()
        if key.startswith(VALIDATION_PREFIX) and value is not None
    }
    return TrialRecord(
        spec=spec_from_plain(plain),
        validation=validation,
        key=row["key"],
        train_seconds=row["train_seconds"],
        resumed=row["resumed"],
        **{key: row[key] for key in kept},
    )
