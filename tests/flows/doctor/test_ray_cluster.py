import pytest

from dml_core.config.pipeline import RayConfig
from flows.doctor.nodes import NodeFacts
from flows.doctor.ray_cluster import check_token, judge_local

HERE = NodeFacts("this machine", "3.11.7", free_shared_memory=2**30)


@pytest.fixture
def token(tmp_path):
    path = tmp_path / "token"
    path.write_text("0123456789abcdef")
    return path


def test_a_token_that_only_its_owner_can_read_is_ok(token):
    token.chmod(0o600)
    finding = check_token({"RAY_AUTH_TOKEN_PATH": str(token)})
    assert finding.state == "ok"
    assert "0123456789abcdef" not in finding.message


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o606])
def test_a_token_that_others_can_read_is_broken(token, mode):
    token.chmod(mode)
    finding = check_token({"RAY_AUTH_TOKEN_PATH": str(token)})
    assert finding.state == "broken"
    assert f"chmod 600 {token}" in finding.remedy


def test_a_named_token_that_is_missing_or_empty_is_broken(token, tmp_path):
    token.write_text("")
    for path in (token, tmp_path / "absent"):
        finding = check_token({"RAY_AUTH_TOKEN_PATH": str(path)})
        assert finding.state == "broken"
        assert "missing or empty" in finding.message


def test_a_missing_token_is_a_warning(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    assert check_token({}).state == "warning"
    assert check_token({"RAY_AUTH_TOKEN": "x"}).state == "ok"


def test_a_local_cluster_needs_no_connection():
    findings = judge_local(HERE, RayConfig(), num_cores=2)
    assert "no cluster to reach" in findings[0].message
    assert {finding.state for finding in findings} == {"ok"}


def test_a_local_cluster_without_the_gpus_of_a_trial_is_broken():
    config = RayConfig(gpus_per_trial=1, cpus_per_trial=4)
    findings = judge_local(HERE, config, num_cores=2)
    states = {finding.subject: finding.state for finding in findings}
    assert states == {"ray": "warning", "memory": "ok", "gpu": "broken"}
