"""The kept checkpoints of a trial: files in a folder, or objects in a bucket.

In a bucket, an epoch is recorded while the next one trains: its checkpoint first, then its line.
"""

from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import Any, Protocol, Self

from dml_core.training.checkpoint import (
    Checkpoint,
    checkpoint_from_bytes,
    checkpoint_path,
    checkpoint_to_bytes,
    load_checkpoint,
    load_newest_checkpoint,
)
from dml_core.training.errors import DamagedCheckpoint
from dml_core.training.report import EpochCallback, EpochReport, is_checkpoint_due
from dml_core.trials.bucket import BucketStore
from dml_core.trials.journal import Journal


class KeptCheckpoints(Protocol):
    """The kept checkpoints of a trial, by epoch."""

    def load(self, epoch: int) -> Checkpoint:
        """Returns a checkpoint; raises FileNotFoundError or DamagedCheckpoint."""

    def load_newest(self) -> tuple[Checkpoint | None, list[str]]:
        """Returns the newest intact one, and a message for each damaged one."""

    def remove(self, epoch: int) -> None:
        """Removes a checkpoint, if it is there."""


class FolderCheckpoints:
    """Checkpoints in a folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def load(self, epoch: int) -> Checkpoint:
        """Returns a checkpoint; raises FileNotFoundError or DamagedCheckpoint."""
        return load_checkpoint(checkpoint_path(self._folder, epoch))

    def load_newest(self) -> tuple[Checkpoint | None, list[str]]:
        """Returns the newest intact one, and a message for each damaged one."""
        return load_newest_checkpoint(self._folder)

    def remove(self, epoch: int) -> None:
        """Removes a checkpoint, if it is there."""
        checkpoint_path(self._folder, epoch).unlink(missing_ok=True)


class BucketCheckpoints:
    """Checkpoints in a bucket; only the requested ones are downloaded."""

    def __init__(self, journal: Journal, store: BucketStore) -> None:
        self._journal = journal
        self._store = store

    def load(self, epoch: int) -> Checkpoint:
        """Returns a checkpoint; raises FileNotFoundError or DamagedCheckpoint."""
        key, name = self._journal.key, _name(epoch)
        place = f"{self._store.location}/checkpoints/{key}/{name}"
        content = self._store.read_checkpoint(key, name)
        if content is None:
            raise FileNotFoundError(f"checkpoint {place} does not exist.")
        return checkpoint_from_bytes(content, place)

    def load_newest(self) -> tuple[Checkpoint | None, list[str]]:
        """Returns the newest intact one of a recorded epoch, and a message for each damaged one.

        A checkpoint whose epoch has no line was uploaded by a worker that died before it wrote it.
        """
        epochs = self._journal.epochs()
        last = int(epochs[-1]["epoch"]) if epochs else 0
        refusals: list[str] = []
        for epoch in reversed([known for known in self._list() if known <= last]):
            try:
                return self.load(epoch), refusals
            except DamagedCheckpoint as error:
                refusals.append(str(error))
            except FileNotFoundError:
                # A stale listing names one that was removed.
                continue
        return None, refusals

    def save(self, epoch: int, content: bytes) -> None:
        """Uploads a checkpoint."""
        self._store.write_checkpoint(self._journal.key, _name(epoch), content)

    def remove(self, epoch: int) -> None:
        """Removes a checkpoint, if it is there."""
        self._store.remove_checkpoint(self._journal.key, _name(epoch))

    def remove_old(self, *, keep: int, last: int) -> None:
        """Removes all but the newest of the epochs up to `last`."""
        for epoch in [known for known in self._list() if known <= last][:-keep]:
            self.remove(epoch)

    def _list(self) -> list[int]:
        names = self._store.list_checkpoints(self._journal.key)
        return sorted(int(name[6:-3]) for name in names if name[6:-3].isdigit())


def open_checkpoints(journal: Journal) -> KeptCheckpoints:
    """Returns the kept checkpoints of a trial."""
    if isinstance(journal.store, BucketStore):
        return BucketCheckpoints(journal, journal.store)
    return FolderCheckpoints(journal.checkpoints)


class UploadedEpochs:
    """Records epochs in a bucket in a thread; at most one is on its way.

    A callback of a training. The one that it calls itself learns of an epoch once it is recorded,
    which is an epoch later unless every epoch is waited for.
    """

    def __init__(
        self,
        journal: Journal,
        store: BucketStore,
        *,
        facts: Mapping[str, Any],
        on_epoch_end: EpochCallback | None,
        waits: bool,
    ) -> None:
        """Prepares the thread.

        Args:
            journal: the trial's.
            store: the journal's.
            facts: further entries of every line.
            on_epoch_end: called in the training's own thread with each recorded epoch.
            waits: whether the training waits after each epoch until that is recorded.
        """
        self._journal = journal
        self._checkpoints = BucketCheckpoints(journal, store)
        self._facts = facts
        self._on_epoch_end = on_epoch_end
        self._waits = waits
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="upload")
        self._pending: tuple[Future[None], EpochReport, Checkpoint] | None = None

    def __call__(self, report: EpochReport, state: Checkpoint) -> bool | None:
        """Begins to record an epoch, after the one before is recorded."""
        verdict = self.finish()
        # The tensors belong to the training, so they are copied before it continues.
        content = checkpoint_to_bytes(state) if is_checkpoint_due(report, state) else None
        keep = state.config.training.keep_checkpoints
        future = self._pool.submit(self._record, report, content, keep)
        self._pending = future, report, state
        return self.finish() if self._waits else verdict

    def finish(self) -> bool | None:
        """Waits until the last epoch is recorded; returns whether the training continues."""
        if self._pending is None:
            return None
        (future, report, state), self._pending = self._pending, None
        future.result()
        return self._on_epoch_end(report, state) if self._on_epoch_end else None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        # Also after an error, an epoch that is on its way is recorded.
        self._pool.shutdown()

    def _record(self, report: EpochReport, content: bytes | None, keep: int) -> None:
        if content is not None:
            self._checkpoints.save(report.epoch, content)
        self._journal.append_epoch({**asdict(report), **self._facts})
        if content is not None:
            self._checkpoints.remove_old(keep=keep, last=report.epoch)


def _name(epoch: int) -> str:
    return checkpoint_path(Path(), epoch).name
