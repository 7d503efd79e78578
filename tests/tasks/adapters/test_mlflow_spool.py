import resource
import signal

import pytest

from tasks.adapters import mlflow_spool
from tasks.adapters.mlflow_spool import Spool, read_header


@pytest.fixture
def path(tmp_path):
    return tmp_path / "sweep" / "mlflow-1.jsonl"


def test_events_come_back_in_order_until_they_are_acknowledged(path):
    spool = Spool(path, header={"identity": 1})
    for number in range(5):
        spool.append({"number": number})
    events, position = spool.read(limit=3)
    assert [event["number"] for event in events] == [0, 1, 2]
    assert spool.read(limit=1)[0] == [{"number": 0}]
    spool.acknowledge(position)
    assert [event["number"] for event in spool.read(limit=9)[0]] == [3, 4]


def test_a_new_process_goes_on_where_the_old_one_was(path):
    spool = Spool(path, header={"identity": 1})
    spool.append({"number": 0})
    spool.acknowledge(spool.read(limit=1)[1])
    spool.append({"number": 1})
    again = Spool(path, header={"identity": 1})
    assert again.read(limit=9)[0] == [{"number": 1}]
    assert read_header(path) == {"identity": 1}


def test_a_line_torn_by_a_kill_is_left_out(path):
    Spool(path, header={}).append({"number": 0})
    with path.open("ab") as file:
        file.write(b'{"number": 1, "met')
    again = Spool(path, header={})
    again.append({"number": 2})
    assert again.read(limit=9)[0] == [{"number": 0}, {"number": 2}]


def test_a_position_beyond_the_file_sends_everything_again(path):
    spool = Spool(path, header={})
    spool.append({"number": 0})
    path.with_suffix(".sent").write_text("99999")
    assert Spool(path, header={}).read(limit=9)[0] == [{"number": 0}]


def test_a_sent_spool_does_not_grow_for_ever(path, monkeypatch):
    monkeypatch.setattr(mlflow_spool, "MAX_SPOOL_BYTES", 1000)
    spool = Spool(path, header={"identity": 1})
    for number in range(500):
        spool.append({"number": number})
        spool.acknowledge(spool.read(limit=9)[1])
    assert path.stat().st_size < 1100
    assert read_header(path) == {"identity": 1}
    spool.append({"number": 500})
    assert Spool(path, header={}).read(limit=9)[0] == spool.read(limit=9)[0]
    assert spool.read(limit=9)[0][-1] == {"number": 500}


def test_remove_leaves_nothing(path):
    spool = Spool(path, header={})
    spool.append({"number": 0})
    spool.acknowledge(spool.read(limit=1)[1])
    spool.remove()
    assert list(path.parent.iterdir()) == []


def test_an_event_that_a_full_disk_took_half_of_spoils_no_other(path):
    spool = Spool(path, header={})
    spool.append({"number": 0})
    limit = path.stat().st_size + 5
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        # A limit of the file's size cuts a write short as a full disk does.
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, before[1]))
        with pytest.raises(OSError, match="File too large"):
            spool.append({"number": 1})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)
    spool.append({"number": 2})
    assert spool.read(limit=9)[0] == [{"number": 0}, {"number": 2}]
