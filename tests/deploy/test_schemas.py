"""The files of deploy/ against the schemas of what reads them."""

import copy
import importlib.resources
import json
import shutil
import subprocess

import jsonschema
import kubernetes_validate
import pytest

from tests.references.deployed_files import (
    DEPLOY,
    SERVICES,
    load,
    objects,
    pod_templates,
    ray_groups,
    read_unit,
)

UNITS = [*SERVICES, DEPLOY / "systemd/dml.target"]
KUBERNETES = "1.33"

# KubeRay's schema is on neither PyPI nor npm: these are the fields that its reference for 1.6 has.
RAY_CLUSTER_FIELDS = {
    "": "rayVersion authOptions enableInTreeAutoscaling autoscalerOptions headGroupSpec "
    "workerGroupSpecs suspend managedBy upgradeStrategy gcsFaultToleranceOptions",
    "authOptions": "mode secretName enableK8sTokenAuth",
    "autoscalerOptions": "idleTimeoutSeconds upscalingMode securityContext resources image "
    "imagePullPolicy env envFrom volumeMounts version",
    "headGroupSpec": "serviceType rayStartParams template headService enableIngress resources "
    "labels",
    "workerGroupSpecs": "groupName replicas minReplicas maxReplicas rayStartParams template "
    "suspend idleTimeoutSeconds scaleStrategy numOfHosts resources labels",
}
# What the units use of systemd.unit, systemd.service, systemd.exec and systemd.resource-control.
DIRECTIVES = {
    "Unit": "Description Documentation After Wants PartOf",
    "Install": "WantedBy",
    "Service": "User Group StateDirectory StateDirectoryMode WorkingDirectory EnvironmentFile "
    "Environment ExecStartPre ExecStart ExecStartPost Restart RestartSec TimeoutStopSec "
    "NoNewPrivileges CapabilityBoundingSet AmbientCapabilities ProtectSystem ProtectHome "
    "PrivateTmp PrivateDevices ProtectClock ProtectHostname ProtectKernelLogs ProtectKernelModules "
    "ProtectKernelTunables ProtectControlGroups ProtectProc RestrictNamespaces RestrictRealtime "
    "RestrictSUIDSGID RestrictAddressFamilies LockPersonality RemoveIPC SystemCallArchitectures "
    "SystemCallFilter SystemCallErrorNumber UMask IPAddressDeny IPAddressAllow ReadWritePaths",
}


def as_pod(template):
    metadata = {"name": "pod", **template["metadata"]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": template["spec"]}


def test_the_ray_cluster_file_fits_the_schema_that_ray_ships():
    schema = json.loads(
        (importlib.resources.files("ray.autoscaler") / "ray-schema.json").read_text()
    )
    (cluster,) = load("ray-up/cluster.yaml")
    jsonschema.validate(cluster, schema)
    with pytest.raises(jsonschema.ValidationError, match="max_wokers"):
        jsonschema.validate({**cluster, "max_wokers": 3}, schema)


def test_every_type_of_node_in_the_ray_cluster_file_is_whole():
    (cluster,) = load("ray-up/cluster.yaml")
    types = cluster["available_node_types"]
    assert cluster["head_node_type"] in types
    workers = [kind for name, kind in types.items() if name != cluster["head_node_type"]]
    assert sum(kind["max_workers"] for kind in workers) <= cluster["max_workers"]
    assert all(kind["min_workers"] == 0 for kind in workers)


def test_the_compose_file_fits_the_compose_specification():
    vendored = importlib.resources.files("check_jsonschema.builtin_schemas.vendor")
    schema = json.loads((vendored / "compose-spec.json").read_text(encoding="utf-8"))
    (compose,) = load("compose/compose.yaml")
    jsonschema.validate(compose, schema)
    wrong = copy.deepcopy(compose)
    wrong["services"]["mlflow"]["comand"] = "mlflow"
    with pytest.raises(jsonschema.ValidationError, match="comand"):
        jsonschema.validate(wrong, schema)


def test_the_network_policy_fits_the_schema_of_kubernetes():
    (found,) = objects("NetworkPolicy")
    kubernetes_validate.validate(found, KUBERNETES, strict=True)


@pytest.mark.parametrize("number", range(2))
def test_a_pod_template_fits_the_schema_of_kubernetes(number):
    pod = as_pod(pod_templates()[number])
    kubernetes_validate.validate(pod, KUBERNETES, strict=True)
    pod["spec"]["containers"][0]["imag"] = "wrong"
    with pytest.raises(kubernetes_validate.ValidationError, match="imag"):
        kubernetes_validate.validate(pod, KUBERNETES, strict=True)


def test_the_kuberay_objects_have_no_field_that_its_reference_lacks():
    (cluster,) = objects("RayCluster")
    assert cluster["apiVersion"] == "ray.io/v1"
    for path, known in RAY_CLUSTER_FIELDS.items():
        found = cluster["spec"][path] if path else cluster["spec"]
        for part in found if isinstance(found, list) else [found]:
            assert set(part) <= set(known.split()), path


def test_the_parameters_of_ray_start_are_texts():
    # KubeRay puts them on a command line; a number or a boolean is refused by its schema.
    for group in ray_groups():
        assert all(isinstance(value, str) for value in group["rayStartParams"].values())


@pytest.mark.parametrize("path", UNITS, ids=lambda path: path.name)
def test_a_unit_has_only_directives_that_systemd_knows(path):
    unit = read_unit(path)
    assert unit.sections()
    for section in unit.sections():
        assert set(unit[section]) <= set(DIRECTIVES[section].split()), section


def test_the_units_pass_systemds_own_check_where_it_is_installed(tmp_path):
    # Without systemd the test above, of the names alone, has to do.
    analyze = shutil.which("systemd-analyze")
    for path in UNITS:
        text = path.read_text(encoding="utf-8")
        for program in ("/opt/dml/.venv/bin/", "/usr/local/bin/"):
            text = text.replace(f"={program}", f"={tmp_path}/")
        (tmp_path / path.name).write_text(text, encoding="utf-8")
    for name in ("prefect", "mlflow", "python", "weed"):
        (tmp_path / name).write_text("#!/bin/sh\n", encoding="utf-8")
        (tmp_path / name).chmod(0o755)
    if analyze:
        units = [str(tmp_path / path.name) for path in UNITS]
        done = subprocess.run(
            [analyze, "verify", "--man=no", *units], capture_output=True, text=True, check=False
        )
        own = [line for line in done.stderr.splitlines() if "dml" in line]
        assert own == [], done.stderr
