"""Trainings whose journal and checkpoints are in a bucket."""

import threading
import uuid

import pytest
import torch

from dml_core.training.checkpoint import checkpoint_to_bytes
from dml_core.training.in_folder import has_usable_result, train_in_folder, train_with_journal
from dml_core.training.kept import open_checkpoints
from dml_core.trials.bucket import BucketStore
from dml_core.trials.journal import Journal
from dml_core.trials.spec import TrialSpec
from tests.references.tiny_trials import prepare_tiny, tiny_config

EPOCHS = 4


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    root = tmp_path_factory.mktemp("prepared")
    return prepare_tiny(root), tiny_config(root, training__epochs=EPOCHS)


@pytest.fixture(scope="module")
def whole(tiny, tmp_path_factory):
    """The same training in a folder, undisturbed."""
    folder = tmp_path_factory.mktemp("whole") / "trial"
    data, config = tiny
    train_in_folder(config, data, folder, on_message=print)
    return Journal.in_folder(folder)


@pytest.fixture
def journal():
    return Journal(BucketStore(f"memory://{uuid.uuid4().hex}"), "k")


def train(tiny, journal, **options):
    data, config = tiny
    with journal.lock():
        return train_with_journal(config, data, journal, **options)


def numbers(journal):
    return [(e["epoch"], e["train_loss"], e["validation"]) for e in journal.epochs()]


def check_same(journal, whole):
    assert numbers(journal) == numbers(whole)
    assert journal.result()["best_score"] == whole.result()["best_score"]
    mine, theirs = (open_checkpoints(each).load(EPOCHS) for each in (journal, whole))
    assert mine.model.keys() == theirs.model.keys()
    assert all(torch.equal(mine.model[name], theirs.model[name]) for name in mine.model)
    assert journal.store.list_checkpoints("k") == ["epoch_000003.pt", "epoch_000004.pt"]


@pytest.mark.parametrize("is_judged", [False, True])
def test_a_training_in_a_bucket_has_the_bits_of_one_in_a_folder(tiny, whole, journal, is_judged):
    seen = []

    def look(report, _):
        # An epoch is reported once it is recorded, in the thread of the training.
        assert threading.current_thread() is threading.main_thread()
        assert journal.epochs()[report.epoch - 1]["epoch"] == report.epoch
        seen.append(report.epoch)

    train(tiny, journal, on_epoch_end=look, is_judged=is_judged)
    assert seen == [1, 2, 3, 4]
    check_same(journal, whole)


def test_an_epoch_is_recorded_in_another_thread_once_its_checkpoint_is_there(
    tiny, whole, journal, monkeypatch
):
    write, lines = journal.store.write_checkpoint, []

    def upload(key, name, content):
        assert threading.current_thread() is not threading.main_thread()
        lines.append(len(journal.epochs()))
        write(key, name, content)

    monkeypatch.setattr(journal.store, "write_checkpoint", upload)
    train(tiny, journal)
    assert lines == [0, 1, 2, 3]
    check_same(journal, whole)


def interrupt_at(journal, monkeypatch, *, name, count):
    """Makes a method of the store raise at its n-th call, before it does anything."""
    method, calls = getattr(journal.store, name), []

    def interrupted(*arguments):
        calls.append(arguments)
        if len(calls) == count:
            raise OSError("the worker died here")
        return method(*arguments)

    monkeypatch.setattr(journal.store, name, interrupted)


@pytest.mark.parametrize("name", ["write_checkpoint", "append", "remove_checkpoint"])
def test_a_write_that_fails_half_way_costs_an_epoch_at_most(
    tiny, whole, journal, monkeypatch, name
):
    count = 1 if name == "remove_checkpoint" else 3
    with monkeypatch.context() as patched:
        interrupt_at(journal, patched, name=name, count=count)
        with pytest.raises(OSError, match="died here"):
            train(tiny, journal)
    recorded = [epoch["epoch"] for epoch in journal.epochs()]
    assert recorded == ([1, 2, 3] if name == "remove_checkpoint" else [1, 2])
    trained = []
    train(tiny, journal, on_epoch_end=lambda report, _: trained.append(report.epoch))
    assert trained == [epoch for epoch in range(1, EPOCHS + 1) if epoch not in recorded]
    check_same(journal, whole)


def stop_after(epoch):
    def stop(report, _):
        if report.epoch == epoch:
            raise SystemExit

    return stop


def test_a_resumed_training_downloads_the_newest_checkpoint_alone(
    tiny, whole, journal, monkeypatch
):
    with pytest.raises(SystemExit):
        train(tiny, journal, on_epoch_end=stop_after(3), is_judged=True)
    elsewhere, downloaded = Journal(BucketStore(journal.store.location), "k"), []
    read = elsewhere.store.read_checkpoint

    def download(key, name):
        downloaded.append(name)
        return read(key, name)

    monkeypatch.setattr(elsewhere.store, "read_checkpoint", download)
    train(tiny, elsewhere)
    assert downloaded == ["epoch_000003.pt"]
    check_same(elsewhere, whole)
    assert elsewhere.result()["attempt"] == 2


def test_a_damaged_checkpoint_is_reported_and_the_one_before_is_used(tiny, whole, journal):
    with pytest.raises(SystemExit):
        train(tiny, journal, on_epoch_end=stop_after(3), is_judged=True)
    content = journal.store.read_checkpoint("k", "epoch_000003.pt")
    journal.store.write_checkpoint("k", "epoch_000003.pt", content[: len(content) // 2])
    said = []
    train(tiny, journal, on_message=said.append)
    assert len(said) == 1
    assert "checkpoints/k/epoch_000003.pt" in said[0]
    assert said[0].endswith("The one before it is used.")
    check_same(journal, whole)


def test_stale_reads_cost_epochs_and_no_bit(tiny, whole, journal):
    with pytest.raises(SystemExit):
        train(tiny, journal, on_epoch_end=stop_after(3), is_judged=True)
    # A later worker sees the record as it was after the first epoch.
    journal.keep_epochs(last=1)
    train(tiny, journal)
    check_same(journal, whole)


def test_a_winner_without_its_last_checkpoint_is_trained_again(tiny, whole, journal):
    spec = TrialSpec("a-0", "study", "a", "repeat", 0, {}, tiny[1])
    train(tiny, journal)
    assert has_usable_result(journal, spec)
    last = open_checkpoints(journal).load(EPOCHS)
    open_checkpoints(journal).remove(EPOCHS)
    assert not has_usable_result(journal, spec)
    journal.store.write_checkpoint("k", f"epoch_{EPOCHS:06d}.pt", checkpoint_to_bytes(last))
    assert has_usable_result(journal, spec)
    with pytest.raises(FileNotFoundError, match=r"memory://.*/checkpoints/k/epoch_000009.pt does"):
        open_checkpoints(journal).load(9)
