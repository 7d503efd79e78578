"""Commands in deploy/ against the help of the installed programs, and versions against the lock."""

import functools
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tests.references.deployed_files import (
    DEPLOY,
    ROOT,
    commands,
    load,
    objects,
    pod_templates,
    read_all,
)

LOCK = dict(
    line.split("==") for line in (ROOT / "requirements.lock").read_text().split() if "==" in line
)
PROGRAMS = ("mlflow server", "prefect server start", "prefect worker start", "ray start")


def options_of(program):
    """Options that deploy/ gives to a program."""
    words = program.split()
    used = set()
    for command in commands():
        names = [Path(word).name for word in command]
        if any(names[i : i + len(words)] == words for i in range(len(names))):
            used |= {word.partition("=")[0] for word in command if word.startswith("--")}
    return used


@functools.cache
def help_of(program):
    name, *rest = program.split()
    done = subprocess.run(
        [str(Path(sys.executable).with_name(name)), *rest, "--help"],
        capture_output=True,
        text=True,
        check=True,
        env={"PATH": "/usr/bin:/bin", "HOME": "/nonexistent", "COLUMNS": "200", "NO_COLOR": "1"},
    )
    return set(re.findall(r"--[a-z][a-z0-9-]*", done.stdout))


@pytest.mark.parametrize("program", PROGRAMS)
def test_every_option_is_one_that_the_installed_program_has(program):
    used = options_of(program)
    assert used, f"no command of {program} was found"
    assert used - help_of(program) == set()


def test_the_store_has_the_same_options_in_compose_and_systemd():
    (unit,) = [line for line in commands() if line and line[0].endswith("/weed")]
    (compose,) = [line for line in commands() if line[:1] == ["server"]]
    names = [
        {word.partition("=")[0] for word in line if word.startswith("-")}
        for line in (unit, compose)
    ]
    assert names[0] == names[1]
    assert {"-s3", "-ip.bind", "-s3.port.iceberg", "-s3.port.lance"} <= names[0]


def test_versions_are_those_of_the_lock():
    versions = [each["spec"].get("rayVersion") for each in load("kuberay/cluster.yaml")]
    assert [version for version in versions if version] == [LOCK["ray"]]
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert project["requires-python"].startswith(">=3.11")
    assert "FROM python:3.11-slim" in (DEPLOY / "Dockerfile").read_text(encoding="utf-8")
    tags = {tag for text in read_all().values() for tag in re.findall(r"\bdml:(\d[\w.]*)", text)}
    assert tags == {project["version"]}


def test_the_nodes_of_a_cluster_share_a_bucket_and_no_file_system():
    assert objects("PersistentVolumeClaim") == []
    volumes = [volume for template in pod_templates() for volume in template["spec"]["volumes"]]
    assert all(set(volume) == {"name", "emptyDir"} for volume in volumes)
    (launched,) = load("ray-up/cluster.yaml")
    assert "initialization_commands" not in launched
    assert not any("--volume" in option for option in launched["docker"]["run_options"])
    for folder in ("kuberay", "ray-up"):
        page = (DEPLOY / folder / "README.md").read_text(encoding="utf-8")
        assert "`sweep.storage: s3://" in page
        assert "dml submit main --folder " in page
    makers = [words for words in commands() if any("make_buckets" in word for word in words)]
    assert [words[-3:] for words in makers] == [["mlflow", "dvc", "trials"]]
    unit = (DEPLOY / "systemd/dml-store.service").read_text(encoding="utf-8")
    assert unit.count(" mlflow dvc trials\n") == 1


def test_the_image_installs_the_lock_and_nothing_beside_it():
    lines = (DEPLOY / "Dockerfile").read_text(encoding="utf-8").splitlines()
    installer, locked, own = (line for line in lines if "pip install" in line)
    assert installer.endswith(" uv")
    assert locked.endswith("-r /tmp/requirements.lock")
    assert "--no-deps" in own
    # What the servers need beyond the project's own imports.
    assert {"psycopg2-binary", "asyncpg", "boto3", "ray", "mlflow", "prefect"} <= set(LOCK)


def test_one_version_of_the_store_is_named_everywhere():
    pattern = re.compile(r"(?:seaweedfs:|SeaweedFS )(\d+\.\d+)")
    named = {version for text in read_all().values() for version in pattern.findall(text)}
    assert named == {"4.48"}
