"""Nothing in deploy/ listens, runs or tells more than it must."""

import re
import stat
import subprocess

import pytest

from flows.servers.access import mlflow_server_settings
from tests.references.deployed_files import (
    DEPLOY,
    SERVICES,
    compose_services,
    load,
    objects,
    pod_templates,
    read_all,
    read_unit,
)
from tests.references.s3_servers import BUCKET, s3_server

ENV_FILES = [DEPLOY / "compose/env.example", *sorted(DEPLOY.glob("systemd/*.env.example"))]


def variables(path):
    lines = path.read_text(encoding="utf-8").splitlines()
    return dict(line.split("=", 1) for line in lines if line and not line.startswith("#"))


@pytest.mark.parametrize("path", ENV_FILES, ids=lambda path: path.name)
def test_a_file_for_the_environment_has_names_without_values(path):
    assert variables(path)
    assert set(variables(path).values()) == {""}


def test_every_value_that_compose_takes_from_outside_is_refused_when_empty():
    text = (DEPLOY / "compose/compose.yaml").read_text(encoding="utf-8")
    taken = re.findall(r"\$\{(\w+)([^}]*)\}", text)
    # In ${NAME:?text} the colon is what refuses an empty value too, and not only a missing one.
    assert [name for name, rest in taken if not rest.startswith(":?")] == []
    assert {name for name, _ in taken} == set(variables(DEPLOY / "compose/env.example"))


def test_compose_opens_ports_to_this_machine_alone():
    ports = [port for service in compose_services().values() for port in service.get("ports", [])]
    assert len(ports) == 3
    assert [port for port in ports if not port.startswith("127.0.0.1:")] == []


def test_no_container_of_compose_is_root_or_gains_rights():
    for name, service in compose_services().items():
        assert service["user"] in ("1000:1000", "postgres"), name
        assert service["cap_drop"] == ["ALL"], name
        assert service["security_opt"] == ["no-new-privileges:true"], name
        assert not service.get("privileged"), name


def test_no_pod_is_root_or_gains_rights():
    for template in pod_templates():
        assert template["spec"]["securityContext"]["runAsNonRoot"] is True
        for container in template["spec"]["containers"]:
            assert container["securityContext"]["allowPrivilegeEscalation"] is False
            assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}


def test_ray_asks_for_its_token_everywhere():
    (cluster,) = objects("RayCluster")
    assert cluster["spec"]["authOptions"] == {"mode": "token", "secretName": "dml-ray-token"}
    (launched,) = load("ray-up/cluster.yaml")
    for key in ("head_start_ray_commands", "worker_start_ray_commands"):
        starts = [line for line in launched[key] if "ray start" in line]
        assert starts
        assert all(line.startswith("RAY_AUTH_MODE=token ") for line in starts)
    assert "/home/dml/.ray/auth_token" in launched["file_mounts"]
    assert "RAY_AUTH_MODE=token" in (DEPLOY / "Dockerfile").read_text(encoding="utf-8")


def test_the_ray_cluster_of_a_cloud_is_closed_until_an_address_is_given():
    (launched,) = load("ray-up/cluster.yaml")
    (rule,) = launched["provider"]["security_group"]["IpPermissions"]
    assert (rule["FromPort"], rule["ToPort"]) == (22, 22)
    # 203.0.113.0/24 is kept for examples; no machine has such an address.
    assert [entry["CidrIp"] for entry in rule["IpRanges"]] == ["203.0.113.0/32"]
    assert "--dashboard-host=127.0.0.1" in " ".join(launched["head_start_ray_commands"])


def test_the_ray_cluster_of_kubernetes_is_reached_by_its_own_pods_and_the_operator():
    (policy,) = objects("NetworkPolicy")
    assert policy["spec"]["policyTypes"] == ["Ingress"]
    (rule,) = policy["spec"]["ingress"]
    selectors = [entry for source in rule["from"] for entry in source.values()]
    assert all(selector["matchLabels"] for selector in selectors)


@pytest.mark.parametrize("path", SERVICES, ids=lambda path: path.name)
def test_a_unit_has_its_own_user_and_no_rights(path):
    service = read_unit(path)["Service"]
    assert service["User"].startswith("dml")
    for key in ("NoNewPrivileges", "ProtectHome", "PrivateTmp", "RestrictSUIDSGID"):
        assert service[key] == "yes", key
    assert service["CapabilityBoundingSet"] == ""
    assert service["ProtectSystem"] == "strict"


@pytest.mark.parametrize("path", SERVICES, ids=lambda path: path.name)
def test_a_unit_of_a_server_speaks_with_this_machine_alone(path):
    service = read_unit(path)["Service"]
    if path.name == "dml-worker.service":
        # It has to reach a cluster, and listens to nothing.
        assert "--host" not in service["ExecStart"]
        return
    assert (service["IPAddressDeny"], service["IPAddressAllow"]) == ("any", "localhost")
    assert re.search(r"(--host |-ip\.bind=)127\.0\.0\.1 ", service["ExecStart"])


@pytest.mark.parametrize("path", SERVICES, ids=lambda path: path.name)
def test_a_unit_refuses_to_start_with_an_empty_secret(path):
    check = read_unit(path)["Service"]["ExecStartPre"]
    names = set(re.findall(r"\$\$(\w+)", check))
    assert names
    script = re.fullmatch(r"/bin/sh -c '(.*)'", check).group(1).replace("$$", "$")
    filled = dict.fromkeys(names, "value")

    def run(environment):
        return subprocess.run(
            ["/bin/sh", "-c", script], env=environment, capture_output=True, text=True, check=False
        )

    assert run(filled).returncode == 0
    for name in names:
        refused = run({**filled, name: ""})
        assert refused.returncode == 1
        assert "fill in" in refused.stderr
        assert "/etc/dml/" in refused.stderr


def test_mlflow_answers_only_hosts_that_are_named():
    found = [" ".join(compose_services()["mlflow"]["command"])]
    found += [read_unit(DEPLOY / "systemd/dml-mlflow.service")["Service"]["ExecStart"]]
    for command in found:
        (allowed,) = re.findall(r"--allowed-hosts (\S+)", command)
        assert "*" not in allowed
        assert all(host.endswith(":5000") for host in allowed.split(","))


def test_both_servers_ask_for_a_password_and_answer_pages_of_their_own_address():
    services = compose_services()
    found = [services["prefect"]["environment"], services["mlflow"]["environment"]]
    for name, variables in zip(("PREFECT_PASSWORD", "MLFLOW_PASSWORD"), found, strict=True):
        assert any(f"${{{name}:?" in str(value) for value in variables.values())
        assert any(f"${{{name}:?" in str(v) for v in services["worker"]["environment"].values())
    units = [DEPLOY / f"systemd/dml-{name}.service" for name in ("prefect", "mlflow")]
    texts = [path.read_text(encoding="utf-8") for path in units]
    assert found[0]["PREFECT_SERVER_CORS_ALLOWED_ORIGINS"] == "http://127.0.0.1:4200"
    assert "\nEnvironment=PREFECT_SERVER_CORS_ALLOWED_ORIGINS=http://127.0.0.1:4200\n" in texts[0]
    assert '-n "$$PREFECT_SERVER_API_AUTH_STRING"' in texts[0]
    assert '-n "$$MLFLOW_AUTH_ADMIN_PASSWORD"' in texts[1]
    command = " ".join(services["mlflow"]["command"])
    assert command.startswith("mlflow server --app-name basic-auth ")
    assert "/mlflow server --app-name basic-auth " in texts[1]
    users = "mlflow-users.ini"
    assert f"MLFLOW_AUTH_CONFIG_PATH=/opt/dml/deploy/{users}\n" in texts[1]
    mounted = found[1]["MLFLOW_AUTH_CONFIG_PATH"]
    assert f"../{users}:{mounted}:ro" in services["mlflow"]["volumes"]


def test_mlflow_asks_as_the_one_of_dml_up_does(tmp_path):
    path = mlflow_server_settings(tmp_path, "secret")["MLFLOW_AUTH_CONFIG_PATH"]
    own, deployed = (
        dict(read_unit(file)["mlflow"]) for file in (path, DEPLOY / "mlflow-users.ini")
    )
    assert own.pop("database_uri").endswith("users.db")
    # Below the folder in which the server runs, that of its own user.
    assert deployed.pop("database_uri") == "sqlite:///users.db"
    assert deployed == own
    assert compose_services()["mlflow"]["working_dir"] == "/state"


def test_no_address_holds_a_password():
    for path, text in read_all().items():
        assert re.findall(r"://[^/\s@]*:[^/\s@$]+@", text) == [], path


def test_the_script_that_makes_databases_is_sound_and_executable():
    script = DEPLOY / "compose/make_databases.sh"
    assert script.stat().st_mode & stat.S_IXUSR
    subprocess.run(["/bin/sh", "-n", str(script)], check=True)


def test_buckets_are_made_once(monkeypatch):
    monkeypatch.syspath_prepend(str(DEPLOY))
    from make_buckets import make_buckets

    with s3_server(monkeypatch) as address:
        assert make_buckets(address, [BUCKET, "mlflow"]) == ["mlflow"]
        assert make_buckets(address, [BUCKET, "mlflow"]) == []


def test_every_folder_of_deploy_says_what_to_change_what_to_run_and_that_it_is_untested():
    folders = [path for path in DEPLOY.iterdir() if path.is_dir() and path.name[0] not in "._"]
    assert len(folders) == 5
    for folder in folders:
        text = (folder / "README.md").read_text(encoding="utf-8")
        assert "## Change" in text
        assert "## Run" in text
        assert "**Not run " in text


def test_no_yaml_file_of_deploy_is_left_out_of_the_checks():
    found = {str(path.relative_to(DEPLOY)) for path in DEPLOY.rglob("*.yaml")}
    assert found == {"ray-up/cluster.yaml", "compose/compose.yaml", "kuberay/cluster.yaml"}
