"""Signing in to a team's servers by files."""

import os

import pytest

from flows.servers.access import MLFLOW_FILE, PREFECT_FILE, sign_in_by_files

SET = (
    "PREFECT_API_AUTH_STRING",
    "MLFLOW_TRACKING_USERNAME",
    "MLFLOW_TRACKING_PASSWORD",
    PREFECT_FILE,
    MLFLOW_FILE,
)


@pytest.fixture
def environment(monkeypatch):
    """An environment without any of the variables; what the function sets is taken back."""
    for name in SET:
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    return monkeypatch


def write(path, text, *, mode=0o600):
    path.write_text(text)
    path.chmod(mode)
    return str(path)


@pytest.mark.parametrize(
    ("text", "expected"), [("secret\n", "dml:secret"), ("ana:her:secret\n", "ana:her:secret")]
)
def test_prefects_file_holds_a_password_or_user_and_password(
    environment, tmp_path, text, expected, caplog
):
    environment.setenv(PREFECT_FILE, write(tmp_path / "prefect", text))
    sign_in_by_files()
    assert os.environ["PREFECT_API_AUTH_STRING"] == expected
    assert caplog.text == ""


def test_mlflows_file_holds_the_password_of_a_user(environment, tmp_path):
    environment.setenv(MLFLOW_FILE, write(tmp_path / "mlflow", "secret\n"))
    sign_in_by_files()
    found = (os.environ["MLFLOW_TRACKING_USERNAME"], os.environ["MLFLOW_TRACKING_PASSWORD"])
    assert found == ("dml", "secret")
    environment.setenv("MLFLOW_TRACKING_USERNAME", "ana")
    environment.setenv("MLFLOW_TRACKING_PASSWORD", "")
    sign_in_by_files()
    assert os.environ["MLFLOW_TRACKING_USERNAME"] == "ana"


def test_a_variable_that_is_set_comes_first(environment, tmp_path):
    environment.setenv(PREFECT_FILE, str(tmp_path / "missing"))
    environment.setenv("PREFECT_API_AUTH_STRING", "dml:own")
    sign_in_by_files()
    assert os.environ["PREFECT_API_AUTH_STRING"] == "dml:own"


def test_a_missing_or_empty_file_is_named_with_its_variable(environment, tmp_path):
    environment.setenv(MLFLOW_FILE, str(tmp_path / "missing"))
    with pytest.raises(ValueError, match=rf"{MLFLOW_FILE} must name a file .*missing"):
        sign_in_by_files()
    environment.setenv(MLFLOW_FILE, write(tmp_path / "empty", "\n"))
    with pytest.raises(ValueError, match=r"MLFLOW_TRACKING_PASSWORD_FILE.*empty is empty"):
        sign_in_by_files()


def test_a_file_that_others_can_read_is_warned_of(environment, tmp_path, caplog):
    path = write(tmp_path / "open", "secret", mode=0o644)
    environment.setenv(PREFECT_FILE, path)
    sign_in_by_files()
    assert f"chmod 600 {path}" in caplog.text
    assert "secret" not in caplog.text
