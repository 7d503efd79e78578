import pytest

from flows.doctor.token_file import check_token


@pytest.fixture
def token(tmp_path):
    path = tmp_path / "token"
    path.write_text("0123456789abcdef")
    return path


def test_a_token_for_its_owner_alone_is_well(token):
    token.chmod(0o600)
    finding = check_token({"RAY_AUTH_TOKEN_PATH": str(token)})
    assert finding.state == "ok"
    assert "0123456789abcdef" not in finding.message


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o606])
def test_a_token_that_others_may_read_is_broken(token, mode):
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


def test_no_token_at_all_is_told(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    assert check_token({}).state == "warning"
    assert check_token({"RAY_AUTH_TOKEN": "x"}).state == "ok"
