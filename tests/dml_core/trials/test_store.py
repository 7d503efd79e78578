import resource
import threading

import pytest

from dml_core.trials.store import LocalStore, append_line, open_store


@pytest.fixture
def store(tmp_path):
    return LocalStore(tmp_path / "trials")


def test_a_file_is_read_as_it_was_written_and_none_is_none(store):
    assert store.read("k", "result.json") is None
    assert store.changed_at("k", "result.json") is None
    store.write("k", "result.json", "ä\n")
    assert store.read("k", "result.json") == "ä\n"
    assert open_store(store.location).read("k", "result.json") == "ä\n"
    assert store.changed_at("k", "result.json") > 0


def test_keys_are_listed_without_locks(store):
    assert store.list_keys() == []
    for key in ("b", "a"):
        store.write(key, "spec.json", "{}")
        with store.lock(key):
            pass
    assert store.list_keys() == ["a", "b"]


def test_a_trial_that_is_gone_takes_no_lines(store):
    store.write("k", "spec.json", "{}")
    store.append("k", "epochs.jsonl", "1")
    store.remove("k")
    with pytest.raises(FileNotFoundError):
        store.append("k", "epochs.jsonl", "2")


def test_a_line_after_a_torn_one_is_a_line_by_itself(tmp_path):
    path = tmp_path / "lines"
    path.write_text("whole\nto")
    append_line(path, "next")
    append_line(path, "last")
    assert path.read_text() == "whole\nto\nnext\nlast\n"


def test_a_write_that_fails_leaves_the_old_file_and_no_other(store, tmp_path, monkeypatch):
    store.write("k", "result.json", "old")

    def refuse(*_):
        raise OSError("no room")

    monkeypatch.setattr("os.replace", refuse)
    with pytest.raises(OSError, match="no room"):
        store.write("k", "result.json", "new")
    assert [path.name for path in (tmp_path / "trials" / "k").iterdir()] == ["result.json"]
    assert store.read("k", "result.json") == "old"


def test_removing_a_trial_leaves_the_others(store):
    for key in ("a", "b"):
        store.write(key, "spec.json", "{}")
    store.remove("a")
    store.remove("b", "missing")
    assert store.list_keys() == ["b"]


def test_a_lock_has_one_holder_and_the_next_waits(store):
    order, is_held = [], threading.Event()

    def hold():
        with store.lock("k"):
            order.append("second")

    with store.lock("k"):
        assert store.is_locked("k")
        assert not store.is_locked("other")
        thread = threading.Thread(target=hold)
        thread.start()
        is_held.wait(0.2)
        order.append("first")
    thread.join()
    assert order == ["first", "second"]
    assert not store.is_locked("k")


def test_the_holder_of_a_lock_removes_what_a_killed_writer_left(store, tmp_path):
    store.write("k", "spec.json", "{}")
    folder = tmp_path / "trials" / "k"
    (folder / ".result.json.1.partial").touch()
    # Another study's driver may write this one at the same time.
    (folder / ".spec.json.1.partial").touch()
    with store.lock("k"):
        left = sorted(path.name for path in folder.iterdir())
    assert left == [".spec.json.1.partial", "spec.json"]


def test_a_line_that_does_not_fit_on_the_disk_raises(tmp_path):
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limits[1]))
    try:
        with pytest.raises(OSError, match="too large"):
            append_line(tmp_path / "lines", "x" * 5000)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    # A later line is not spoilt by the part that was written.
    append_line(tmp_path / "lines", "next")
    assert (tmp_path / "lines").read_text().splitlines()[-1] == "next"
