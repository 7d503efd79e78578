"""The tracking store's address, its database, and links to its pages."""

import json
import os
import socket
import sqlite3
import subprocess
import sys
import threading
import time
import traceback
from contextlib import closing
from pathlib import Path
from urllib.parse import parse_qs

import pytest

from dml_core.config import ConfigError
from dml_core.config.loading import load_project_config
from dml_core.config.pipeline import MlflowConfig
from tasks.tracking.address import (
    UNREADABLE_ADDRESS,
    DamagedDatabase,
    Tracking,
    TrackingError,
    choose_tracking_uri,
    hide_credentials,
    link_comparison,
    open_tracking,
    silence_mlflow,
    take_credentials,
)

ROOT = Path(__file__).parents[3]


def test_the_parameters_come_before_the_environment_and_both_before_the_default(tmp_path):
    environment = {"MLFLOW_TRACKING_URI": "http://127.0.0.1:1"}
    chosen = MlflowConfig(tracking_uri="http://127.0.0.1:2")
    assert choose_tracking_uri(chosen, project=tmp_path, environment=environment).endswith(":2")
    default = MlflowConfig()
    assert choose_tracking_uri(default, project=tmp_path, environment=environment).endswith(":1")
    assert (
        choose_tracking_uri(default, project=tmp_path, environment={})
        == f"sqlite:///{tmp_path}/mlflow.db"
    )


def test_a_folder_of_files_is_refused_with_what_to_write(tmp_path):
    with pytest.raises(TrackingError, match=r"Got './mlruns'.*sqlite:///mlflow.db"):
        choose_tracking_uri(MlflowConfig(tracking_uri="./mlruns"), project=tmp_path)


def test_telemetry_is_off():
    silence_mlflow()
    assert os.environ["MLFLOW_DISABLE_TELEMETRY"] == "true"
    assert os.environ["DO_NOT_TRACK"] == "true"


def test_credentials_are_hidden():
    assert hide_credentials("http://ann:secret@host:1/x") == "http://host:1/x"
    assert hide_credentials("http://host:1/a@b") == "http://host:1/a@b"


def write_garbage(path):
    path.write_bytes(b"not a database" * 100)


def cut_short(path):
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2 + 100])


def take_other_schema(path):
    with closing(sqlite3.connect(path)) as database, database:
        database.execute("update alembic_version set version_num = 'of_another_mlflow'")


@pytest.mark.parametrize("damage", [write_garbage, cut_short, take_other_schema])
def test_a_damaged_database_is_named_with_what_to_do(tmp_path, mlflow_config, damage):
    path = tmp_path / "mlflow.db"
    damage(path)
    damaged = path.read_bytes()
    started = time.monotonic()
    with pytest.raises(DamagedDatabase) as caught:
        open_tracking(mlflow_config, project=tmp_path)
    assert time.monotonic() - started < 15
    message = str(caught.value)
    assert message.startswith(f"MLflow's database {path} cannot be used: ")
    assert "mv mlflow.db mlflow.db.damaged" in message
    assert f"mlflow db upgrade sqlite:///{path}" in message
    assert path.read_bytes() == damaged
    # What the message says to do helps, also within the same process.
    path.rename(tmp_path / "mlflow.db.damaged")
    tracking = open_tracking(mlflow_config, project=tmp_path)
    assert tracking.client().create_experiment("one")


def test_the_database_is_its_owners_alone(tmp_path, mlflow_config):
    path = tmp_path / "mlflow.db"
    for is_there in (True, False):
        if is_there:
            path.chmod(0o644)
        else:
            path.unlink()
        tracking = open_tracking(mlflow_config, project=tmp_path)
        tracking.client().create_experiment(f"there {is_there}")
        files = sorted(tmp_path.glob("mlflow.db*"))
        assert path in files
        readable = [
            file.name
            for file in (*files, tmp_path / "mlartifacts")
            # The lock holds nothing.
            if file.suffix != ".lock" and file.stat().st_mode & 0o077
        ]
        assert readable == []


@pytest.mark.parametrize(
    "address",
    [
        "http://ann:hunter/2@host:5000",
        "http://ann:hunter?2@host:5000",
        "http://ann:hunter#2@host:5000",
        "http://ann:[hunter2@host:5000",
        "https://hunter2@host:5000",
        "https://hunter2:@host:5000",
        "ann:hunter2@host:5000",
        "http://ann:hunter2@host:port",
    ],
)
def test_a_password_that_cannot_be_read_is_refused_without_repeating_it(
    tmp_path, monkeypatch, address
):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", address)
    with pytest.raises(TrackingError) as caught:
        open_tracking(MlflowConfig(), project=tmp_path)
    assert str(caught.value) == UNREADABLE_ADDRESS
    told = "".join(traceback.format_exception(caught.value))
    assert "hunter" not in told


def test_user_and_password_leave_the_address_and_reach_mlflow_by_its_variables(monkeypatch):
    for name in ("MLFLOW_TRACKING_USERNAME", "MLFLOW_TRACKING_PASSWORD"):
        # Set first, so that what the function sets is taken back after the test.
        monkeypatch.setenv(name, "")
    assert take_credentials("http://ann:p%40ss@host:1/x") == "http://host:1/x"
    assert os.environ["MLFLOW_TRACKING_USERNAME"] == "ann"
    assert os.environ["MLFLOW_TRACKING_PASSWORD"] == "p@ss"  # noqa: S105
    assert take_credentials("http://host:1/a@b") == "http://host:1/a@b"
    database = "postgresql://ann:secret@host/db"
    assert take_credentials(database) == database


def test_a_password_in_the_parameters_is_refused_without_repeating_it(tmp_path):
    path = tmp_path / "params.yaml"
    path.write_text("mlflow: {tracking_uri: 'http://ann:hunter2@host:5000'}")
    with pytest.raises(
        ConfigError, match=r"mlflow.tracking_uri must not hold a password"
    ) as caught:
        load_project_config(path)
    assert "hunter2" not in str(caught.value)
    assert "hunter2" not in "".join(traceback.format_exception(caught.value))


def test_an_address_without_a_server_is_named_in_time(monkeypatch):
    for name in ("MLFLOW_TRACKING_USERNAME", "MLFLOW_TRACKING_PASSWORD"):
        monkeypatch.setenv(name, "")
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    started = time.monotonic()
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"http://ann:secret@127.0.0.1:{port}")
    config = MlflowConfig(timeout_seconds=2)
    with pytest.raises(TrackingError, match=rf"http://127\.0\.0\.1:{port} .*dml up") as caught:
        open_tracking(config, project=Path())
    assert time.monotonic() - started < 6
    assert "secret" not in str(caught.value)


def test_a_server_that_never_answers_is_named_in_time():
    with socket.create_server(("127.0.0.1", 0)) as server:
        threading.Thread(target=lambda: [server.accept() for _ in range(2)], daemon=True).start()
        port = server.getsockname()[1]
        started = time.monotonic()
        config = MlflowConfig(tracking_uri=f"http://127.0.0.1:{port}", timeout_seconds=2)
        with pytest.raises(TrackingError, match=f"{port} does not answer within 2 s"):
            open_tracking(config, project=Path())
        assert time.monotonic() - started < 8


@pytest.mark.integration
def test_two_processes_may_create_the_database_at_once(tmp_path):
    code = (
        "from pathlib import Path\n"
        "from dml_core.config.pipeline import MlflowConfig\n"
        "from tasks.tracking.address import open_tracking\n"
        "config = MlflowConfig(tracking_uri='sqlite:///mlflow.db')\n"
        f"open_tracking(config, project=Path({str(tmp_path)!r}))\n"
    )
    command = [sys.executable, "-c", code]
    both = [subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE) for _ in range(2)]
    errors = [process.communicate(timeout=300)[1].decode() for process in both]
    assert [process.returncode for process in both] == [0, 0], errors


def test_the_comparison_names_its_runs_and_experiments():
    tracking = Tracking("http://127.0.0.1:5000/", artifact_root=None)
    url = link_comparison(tracking, experiment_ids=["1"], run_ids=["aa", "bb"]).url
    page, query = url.split("?")
    assert page == "http://127.0.0.1:5000/#/compare-runs"
    values = parse_qs(query)
    assert json.loads(values["runs"][0]) == ["aa", "bb"]
    assert json.loads(values["experiments"][0]) == ["1"]


def test_a_file_has_a_path_without_an_address():
    tracking = Tracking("sqlite:////tmp/mlflow.db", artifact_root=None)
    link = link_comparison(tracking, experiment_ids=["1"], run_ids=["aa"])
    assert link.url.startswith("/#/compare-runs?runs=%5B%22aa%22%5D")


def test_no_link_shows_a_password():
    tracking = Tracking("https://ann:secret@example.org", artifact_root=None)
    link = link_comparison(tracking, experiment_ids=["1"], run_ids=["aa"])
    assert link.url.startswith("https://example.org/#/compare-runs?")
