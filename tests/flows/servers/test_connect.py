import time

import pytest

from flows.servers.connect import set_up_prefect
from flows.servers.network import find_free_port


def test_a_server_that_does_not_answer_is_named_within_seconds(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    port = find_free_port("127.0.0.1")
    for name in ("PREFECT_HOME", "PREFECT_LOGGING_LEVEL"):
        monkeypatch.setenv(name, str(tmp_path) if name.endswith("HOME") else "WARNING")
    monkeypatch.setenv("PREFECT_API_URL", f"http://user:secret@127.0.0.1:{port}/api")
    started = time.monotonic()
    with pytest.raises(ValueError, match=rf"127\.0\.0\.1:{port}/api.*dml up") as caught:
        set_up_prefect()
    assert time.monotonic() - started < 15
    assert "secret" not in str(caught.value)
