import io
import logging

import pytest

from tasks.secrets import redact, redact_logs

ENVIRONMENT = {
    "AWS_SECRET_ACCESS_KEY": "aws-hunter2",
    "PREFECT_API_KEY": "pnu_hunter2",
    "MLFLOW_TRACKING_URI": "http://ann:p%40ss-word@host:5000",
    "RAY_AUTH_TOKEN_PATH": "/run/token",
    "RAY_AUTH_MODE": "token-mode",
    "DB_PASSWORD": "short",
    "HOME": "/home/ann",
}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("GET http://ann:pw@host/x failed", "GET http://***@host/x failed"),
        ("postgresql+psycopg2://u:p@h/db", "postgresql+psycopg2://***@h/db"),
        ("key aws-hunter2, pnu_hunter2.", "key ***, ***."),
        ("password p%40ss-word is p@ss-word", "password *** is ***"),
        ("see /run/token in /home/ann, token-mode", "see /run/token in /home/ann, token-mode"),
        ("a short word", "a short word"),
        ("ann@host, http://host/a@b", "ann@host, http://host/a@b"),
    ],
)
def test_secrets_are_taken_out_and_the_rest_stays(text, expected):
    assert redact(text, ENVIRONMENT) == expected


@pytest.mark.parametrize(
    "password", ["hunter/22", "hunter[22", "hunter?22", "hunter#2@2", "a:b/c@dd"]
)
def test_a_password_that_should_have_been_encoded_is_taken_out_too(password):
    environment = {"MLFLOW_TRACKING_URI": f"http://ann:{password}@host:5000"}
    text = f"Invalid port in {environment['MLFLOW_TRACKING_URI']}, {password!r}."
    shown = redact(text, environment)
    assert password not in shown
    assert "hunter" not in shown
    assert shown.startswith("Invalid port in http://")
    assert shown.endswith("@host:5000, '***'.")


def test_log_records_are_redacted_with_their_tracebacks(monkeypatch):
    monkeypatch.setenv("PREFECT_API_KEY", "pnu_hunter2")
    before = logging.getLogRecordFactory()
    stream = io.StringIO()
    logger = logging.Logger("alone")
    logger.addHandler(logging.StreamHandler(stream))
    try:
        redact_logs()
        redact_logs()
        logger.warning("asked %s with %s", "http://ann:pw@host", "pnu_hunter2")
        try:
            raise ValueError("refused pnu_hunter2")
        except ValueError:
            logger.exception("it failed")
    finally:
        logging.setLogRecordFactory(before)
    written = stream.getvalue()
    assert "asked http://***@host with ***" in written
    assert "ValueError: refused ***" in written
    assert "hunter2" not in written
