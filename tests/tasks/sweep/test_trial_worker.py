import errno
import os
import threading
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from dml_core.devices import describe_device
from dml_core.training.ddp import WorkerLost
from dml_core.trials.journal import read_device
from dml_core.trials.key import hash_training_code, read_libraries
from dml_core.trials.ledger import Ledger
from dml_core.trials.spec import TrialSpec, spec_to_plain
from dml_core.trials.store import LocalStore
from tasks.machine_faults import DiskFull, OtherCode, OutOfMemory
from tasks.sweep.job import TrialJob
from tasks.sweep.node_data import describe_data, open_once
from tasks.sweep.worker import work_as_other_rank, work_on_trial
from tests.dml_core.trials.test_journal import write_epochs, write_result
from tests.references.tiny_trials import prepare_tiny, tiny_config


@pytest.fixture(scope="module")
def tiny_root(tmp_path_factory):
    root = tmp_path_factory.mktemp("prepared")
    prepare_tiny(root)
    return root


@pytest.fixture(autouse=True)
def same_folder_afterwards():
    before = os.getcwd()
    yield
    os.chdir(before)


def make_job(config, tmp_path, **knobs):
    spec = TrialSpec("a-0", "study", "a", "search", 0, {}, config)
    tmp_path.mkdir(exist_ok=True)
    store = LocalStore(tmp_path / "trials")
    ledger = Ledger(tmp_path, store, code="", data_version=describe_data)
    ledger.open(spec)
    job = TrialJob(
        spec=spec_to_plain(spec),
        key=ledger.key(spec),
        store=store.location,
        note=str(tmp_path / "hung.txt"),
        working_folder=str(tmp_path),
        data_version=knobs.pop("data_version", describe_data(config)),
        **knobs,
    )
    return job, ledger, spec


def test_a_trial_reports_its_epochs_and_leaves_a_result(tiny_root, tmp_path):
    job, ledger, spec = make_job(tiny_config(tiny_root), tmp_path)
    reported = []
    work_on_trial(job, report=reported.append)
    assert [epoch["epoch"] for epoch in reported] == [1, 2, 3]
    assert ledger.find(spec).status == "finished"
    work_on_trial(job, report=lambda epoch: pytest.fail("it had ended"))


def test_a_stopped_trial_resumes_and_reports_its_last_epoch_again(tiny_root, tmp_path):
    job, ledger, spec = make_job(tiny_config(tiny_root), tmp_path)
    with pytest.raises(SystemExit):
        work_on_trial(job, report=lambda epoch: exit())
    assert ledger.find(spec) is None
    reported = []
    work_on_trial(job, report=reported.append)
    assert [epoch["epoch"] for epoch in reported] == [1, 2, 3]
    assert ledger.find(spec).resumed == 1


def test_an_exception_is_an_outcome_with_its_reason_and_traceback(tiny_root, tmp_path):
    config = tiny_config(tiny_root, sampler__batch_size=400)
    job, ledger, spec = make_job(config, tmp_path)
    work_on_trial(job, report=lambda epoch: None)
    record = ledger.end(spec)
    assert record.status == "failed"
    assert "Error: " in record.reason
    assert "Traceback" in ledger.journal(spec).result()["traceback"]


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        ({"code": "other"}, r"imported other training code \(\w+\) than .* \(other\)"),
        ({"libraries": {"torch": "1.0"}}, r"has torch \S+ where the sweep was .* with torch 1\.0"),
        ({"libraries": {"jax": "1.0"}}, r"has jax none where the sweep was .* with jax 1\.0"),
    ],
)
def test_a_worker_with_other_code_or_libraries_refuses_and_records_nothing(
    tiny_root, tmp_path, wanted, expected
):
    job, ledger, spec = make_job(tiny_config(tiny_root), tmp_path, **wanted)
    with pytest.raises(OtherCode, match=expected):
        work_on_trial(job, report=lambda epoch: pytest.fail("it trained"))
    with pytest.raises(OtherCode, match=expected):
        work_as_other_rank(job, join=lambda config: pytest.fail("it joined"))
    folder = ledger.journal(spec).checkpoints.parent
    assert [path.name for path in folder.iterdir()] == ["spec.json"]
    assert ledger.find(spec) is None
    same = {"code": hash_training_code(), "libraries": read_libraries()}
    work_on_trial(replace(job, **same), report=lambda epoch: None)
    record = ledger.find(spec)
    assert (record.status, record.resumed) == ("finished", 0)


def test_a_trial_that_was_begun_on_another_device_is_trained_anew(tiny_root, tmp_path):
    job, ledger, spec = make_job(tiny_config(tiny_root), tmp_path)
    with pytest.raises(SystemExit):
        work_on_trial(job, report=lambda epoch: exit())
    journal = ledger.journal(spec)
    (epoch,) = journal.epochs()
    assert epoch["device"] == describe_device(torch.device("cpu"))
    journal.keep_epochs(last=0)
    journal.append_epoch({**epoch, "device": "cpu of another kind"})
    reported = []
    work_on_trial(job, report=reported.append)
    # No epoch of the other device is reported again or kept.
    assert [epoch["epoch"] for epoch in reported] == [1, 2, 3]
    assert "begun on cpu of another kind and is trained anew" in reported[0]["messages"][0]
    assert read_device(journal.epochs()) == describe_device(torch.device("cpu"))


def test_a_failed_trial_is_tried_again_and_ends(tiny_root, tmp_path):
    job, ledger, spec = make_job(tiny_config(tiny_root), tmp_path)
    with pytest.raises(SystemExit):
        work_on_trial(job, report=lambda epoch: exit())
    journal = ledger.journal(spec)
    journal.write_failure(spec.config, reason="another study saw this", traceback="")
    reported = []
    work_on_trial(job, report=reported.append)
    assert [epoch["epoch"] for epoch in reported] == [1, 2, 3]
    assert ledger.find(spec).status == "finished"


def test_a_worker_waits_for_another_that_trains_the_same_and_uses_its_result(tiny_root, tmp_path):
    job, ledger, spec = make_job(tiny_config(tiny_root), tmp_path, timeout_seconds=0.5)
    journal = ledger.journal(spec)
    waiting = threading.Thread(
        target=work_on_trial, args=(job,), kwargs={"report": lambda epoch: pytest.fail("trained")}
    )
    with journal.lock():
        waiting.start()
        # Longer than an epoch may take: waiting is not hanging.
        waiting.join(1.5)
        assert waiting.is_alive()
        write_epochs(journal, [0.1])
        write_result(journal, epoch=1)
    waiting.join(60)
    assert not waiting.is_alive()
    assert ledger.find(spec).score == 0.1
    assert not Path(job.note).exists()


def test_a_lost_worker_is_no_outcome_and_the_trial_resumes(tiny_root, tmp_path):
    job, ledger, spec = make_job(tiny_config(tiny_root), tmp_path)

    @contextmanager
    def lose(job, config):
        raise WorkerLost("a worker of the trial is gone")
        yield

    with pytest.raises(WorkerLost):
        work_on_trial(job, report=lambda epoch: None, start_group=lose)
    assert ledger.find(spec) is None
    work_on_trial(job, report=lambda epoch: None)
    assert ledger.find(spec).status == "finished"


@pytest.mark.parametrize(
    ("error", "expected"),
    [(OSError(errno.ENOSPC, "No space left"), DiskFull), (MemoryError(), OutOfMemory)],
)
def test_a_fault_of_the_machine_is_no_outcome_and_the_trial_resumes(
    tiny_root, tmp_path, error, expected
):
    job, ledger, spec = make_job(tiny_config(tiny_root), tmp_path)

    def fail(epoch):
        raise error

    with pytest.raises(expected):
        work_on_trial(job, report=fail)
    assert ledger.find(spec) is None
    assert ledger.journal(spec).result() is None
    work_on_trial(job, report=lambda epoch: None)
    assert ledger.find(spec).status == "finished"


def test_a_damaged_checkpoint_is_reported_with_the_next_epoch(tiny_root, tmp_path):
    job, ledger, spec = make_job(tiny_config(tiny_root), tmp_path)

    def stop_late(epoch):
        if epoch["epoch"] == 2:
            exit()

    with pytest.raises(SystemExit):
        work_on_trial(job, report=stop_late)
    (newest,) = ledger.journal(spec).checkpoints.glob("epoch_000002.pt")
    newest.write_bytes(newest.read_bytes()[:-100])
    reported = []
    work_on_trial(job, report=reported.append)
    expected = [(epoch["epoch"], epoch["messages"]) for epoch in reported if "messages" in epoch]
    ((epoch, (message,)),) = expected
    assert epoch == 2
    assert "epoch_000002.pt" in message
    assert "The one before it is used." in message


def test_other_data_than_the_driver_has_are_refused(tiny_root, tmp_path):
    job, ledger, spec = make_job(tiny_config(tiny_root), tmp_path, data_version="abc/def")
    work_on_trial(job, report=lambda epoch: None)
    assert "started with, abc/def. Got " in ledger.end(spec).reason


def test_data_that_are_not_prepared_are_an_outcome(tmp_path):
    job, ledger, spec = make_job(tiny_config(tmp_path / "nowhere"), tmp_path)
    work_on_trial(job, report=lambda epoch: None)
    assert "Run: dml prepare" in ledger.end(spec).reason


def test_data_are_opened_once_a_process(tiny_root):
    config = tiny_config(tiny_root)
    version = describe_data(config)
    first = open_once(config, expected=version)
    assert open_once(tiny_config(tiny_root, seed=3), expected=version) is first


def test_a_journal_holds_what_training_writes_and_nothing_else(tiny_root, tmp_path):
    job, ledger, spec = make_job(tiny_config(tiny_root), tmp_path)
    work_on_trial(job, report=lambda epoch: None)
    result = ledger.journal(spec).result()
    record = ledger.find(spec)
    assert (record.score, record.best_epoch) == (result["best_score"], result["best_epoch"])
    assert record.validation == result["validation"]
    assert len(ledger.journal(spec).epochs()) == 3
    folder = ledger.journal(spec).checkpoints.parent
    assert sorted(path.name for path in folder.iterdir()) == [
        "checkpoints",
        "epochs.jsonl",
        "result.json",
        "spec.json",
    ]


def test_data_damaged_under_a_trial_cost_an_epoch_and_no_bit(tmp_path, monkeypatch, caplog):
    monkeypatch.chdir(tmp_path)
    prepare_tiny(tmp_path / "prepared")
    config = tiny_config(tmp_path / "prepared")
    quiet, ledger, spec = make_job(config, tmp_path / "quiet")
    work_on_trial(quiet, report=lambda epoch: None)
    wanted = without_times(ledger.journal(spec).epochs())
    job, ledger, spec = make_job(config, tmp_path / "hit")
    images = config.data.prepared_path / "development" / "images.bin"
    reported = []

    def hit_after_the_first(epoch):
        reported.append(epoch)
        if len(reported) == 1:
            # Written in place, so that the pixels that the trial has mapped change too.
            with images.open("r+b") as stream:
                stream.write(b"\xff" * (images.stat().st_size // 2))

    work_on_trial(job, report=hit_after_the_first)
    assert ledger.find(spec).status == "finished"
    assert "images.bin is damaged" in caplog.text
    assert "restored from preparing again" in caplog.text
    assert "its data changed while it read them" in caplog.text
    assert [epoch["epoch"] for epoch in reported] == [1, 2, 3]
    assert without_times(reported) == wanted
    assert without_times(ledger.journal(spec).epochs()) == wanted


def without_times(epochs):
    left_out = (
        "train_seconds",
        "images_per_second",
        "peak_memory_mib",
        "messages",
        "attempt",
        "device",
    )
    return [{k: v for k, v in epoch.items() if k not in left_out} for epoch in epochs]
