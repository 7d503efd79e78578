"""What is started, and who may reach it."""

import pytest

from flows.commands.servers import check_host, check_public_name
from flows.servers.network import is_loopback
from flows.servers.plans import make_address, plan_mlflow, plan_prefect, plan_worker

EVERYWHERE = "0.0.0.0"  # noqa: S104


@pytest.mark.parametrize("host", ["127.0.0.1", "127.3.2.1", "::1", "localhost"])
def test_loopback_needs_no_permission(host, capsys):
    assert is_loopback(host)
    check_host(host, allow_remote=False)
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("host", [EVERYWHERE, "::", "10.0.0.7", "gpu-box"])
def test_other_hosts_need_a_flag_and_get_a_warning(host, capsys):
    assert not is_loopback(host)
    with pytest.raises(ValueError, match=f"--host {host} --allow-remote"):
        check_host(host, allow_remote=False)
    check_host(host, allow_remote=True)
    assert "the password travels unencrypted" in capsys.readouterr().out


def test_this_machine_reaches_the_addresses():
    assert make_address(EVERYWHERE, 80) == "http://127.0.0.1:80"
    assert make_address("::1", 80) == "http://[::1]:80"
    assert make_address("gpu-box", 80) == "http://gpu-box:80"


def test_mlflow_answers_only_names_of_this_machine(tmp_path):
    command = plan_mlflow(tmp_path, host="127.0.0.1", port=5000).command
    allowed = command[command.index("--allowed-hosts") + 1].split(",")
    assert allowed == ["localhost", "localhost:*", "127.0.0.1", "127.0.0.1:*", "127.0.0.1:5000"]
    assert "*" not in plan_mlflow(tmp_path, host=EVERYWHERE, port=5000).command[-1].split(",")


def test_mlflow_answers_the_public_name_and_serves_artifacts_to_other_machines(tmp_path):
    own = plan_mlflow(tmp_path, host="127.0.0.1", port=5000).command
    public = plan_mlflow(
        tmp_path, host="127.0.0.1", port=5000, public_name="team.example.com"
    ).command
    allowed = public[public.index("--allowed-hosts") + 1].split(",")
    assert {"team.example.com", "team.example.com:*"} <= set(allowed)
    assert public[public.index("--cors-allowed-origins") + 1] == (
        "https://team.example.com,https://team.example.com:*"
    )
    assert ("--default-artifact-root" in own, "--default-artifact-root" in public) == (True, False)


@pytest.mark.parametrize("name", ["https://team", "team:443", "a b", "-x", "team/"])
def test_a_public_name_is_a_host_name(name):
    with pytest.raises(ValueError, match=f"--public-name must be .* Got {name!r}"):
        check_public_name(name)
    check_public_name("team.example.com")


def test_the_environment_names_another_database(tmp_path, monkeypatch):
    for name in ("MLFLOW_BACKEND_STORE_URI", "PREFECT_SERVER_DATABASE_CONNECTION_URL"):
        monkeypatch.delenv(name, raising=False)
    own = plan_mlflow(tmp_path, host="127.0.0.1", port=5000)
    assert own.environment["MLFLOW_BACKEND_STORE_URI"] == "sqlite:///mlflow.db"
    assert not plan_prefect(tmp_path, host="127.0.0.1", port=4200).has_other_database
    other = "postgresql+psycopg2://dml:secret@host/mlflow"
    monkeypatch.setenv("MLFLOW_BACKEND_STORE_URI", other)
    monkeypatch.setenv("PREFECT_SERVER_DATABASE_CONNECTION_URL", "postgresql+asyncpg://host/x")
    plan = plan_mlflow(tmp_path, host="127.0.0.1", port=5000)
    assert plan.environment["MLFLOW_BACKEND_STORE_URI"] == other
    # Other users can read a command line.
    assert not any("secret" in word for word in plan.command)
    assert plan_prefect(tmp_path, host="127.0.0.1", port=4200).has_other_database


def test_no_server_starts_without_a_password(tmp_path, monkeypatch):
    prefect = plan_prefect(tmp_path, host="127.0.0.1", port=4200)
    password = (tmp_path / ".dml" / "password").read_text().strip()
    assert len(password) >= 32
    assert prefect.environment["PREFECT_SERVER_API_AUTH_STRING"] == f"dml:{password}"
    assert prefect.environment["PREFECT_SERVER_CORS_ALLOWED_ORIGINS"] == "http://127.0.0.1:4200"
    mlflow = plan_mlflow(tmp_path, host="127.0.0.1", port=5000)
    assert mlflow.command[mlflow.command.index("--app-name") + 1] == "basic-auth"
    assert mlflow.environment["MLFLOW_AUTH_ADMIN_PASSWORD"] == password
    assert not any(password in word for plan in (prefect, mlflow) for word in plan.command)
    # Without this package MLflow would not start with basic-auth.
    with monkeypatch.context() as patch:
        patch.setattr("importlib.util.find_spec", lambda name: None)
        with pytest.raises(ValueError, match=r"Flask-WTF.*is not started"):
            plan_mlflow(tmp_path, host="127.0.0.1", port=5000)
    (tmp_path / ".dml" / "password").write_text("\n")
    for plan in (plan_prefect, plan_mlflow):
        with pytest.raises(ValueError, match="the password of the servers, and is empty"):
            plan(tmp_path, host="127.0.0.1", port=4200)
    (tmp_path / ".dml" / "password").unlink()
    with pytest.raises(ValueError, match=r"mlflow-users\.db"):
        plan_mlflow(tmp_path, host="127.0.0.1", port=5000)


def test_prefect_stays_in_the_project_folder(tmp_path):
    for plan in (
        plan_prefect(tmp_path, host="127.0.0.1", port=4200),
        plan_worker(tmp_path, prefect="http://127.0.0.1:4200", mlflow="http://127.0.0.1:5000"),
    ):
        assert plan.environment["PREFECT_HOME"] == str(tmp_path.resolve() / ".dml" / "prefect")
        assert plan.environment["PREFECT_API_URL"] == "http://127.0.0.1:4200/api"


def test_the_worker_has_the_same_name_at_each_start(tmp_path):
    addresses = {"prefect": "http://127.0.0.1:1", "mlflow": "http://127.0.0.1:2"}
    first, again = (plan_worker(tmp_path, **addresses).worker_name for _ in range(2))
    elsewhere = plan_worker(tmp_path / "other", **addresses).worker_name
    assert first == again != elsewhere


def test_the_worker_keeps_a_tracking_server_of_the_environment(tmp_path, monkeypatch):
    addresses = {"prefect": "http://127.0.0.1:1", "mlflow": "http://127.0.0.1:2"}
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    name = "MLFLOW_TRACKING_URI"
    assert plan_worker(tmp_path, **addresses).environment[name] == "http://127.0.0.1:2"
    monkeypatch.setenv(name, "http://team:5000")
    assert plan_worker(tmp_path, **addresses).environment[name] == "http://team:5000"
