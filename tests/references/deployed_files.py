"""The files of deploy/, read for tests."""

import configparser
import re
import shlex
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
SERVICES = sorted(DEPLOY.glob("systemd/*.service"))


def load(name: str) -> list[Any]:
    """Returns the documents of a YAML file below deploy/."""
    return list(yaml.safe_load_all((DEPLOY / name).read_text(encoding="utf-8")))


def read_all() -> dict[Path, str]:
    """Returns the text of every file below deploy/."""
    files = [path for path in DEPLOY.rglob("*") if path.is_file() and path.suffix != ".pyc"]
    return {path: path.read_text(encoding="utf-8") for path in files}


def compose_services() -> dict[str, Any]:
    """Returns the services of the compose file."""
    (content,) = load("compose/compose.yaml")
    return dict(content["services"])


def objects(kind: str) -> list[Any]:
    """Returns the Kubernetes objects of a kind."""
    return [each for each in load("kuberay/cluster.yaml") if each["kind"] == kind]


def ray_groups() -> list[Any]:
    """Returns the head's and the workers' groups of the RayCluster."""
    (cluster,) = objects("RayCluster")
    return [cluster["spec"]["headGroupSpec"], *cluster["spec"]["workerGroupSpecs"]]


def pod_templates() -> list[Any]:
    """Returns the templates of the head and of the workers."""
    return [group["template"] for group in ray_groups()]


def read_unit(path: Path) -> configparser.ConfigParser:
    """Returns a systemd unit; of a key that is repeated, the last value."""
    parser = configparser.ConfigParser(strict=False, interpolation=None, delimiters=("=",))
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read(path, encoding="utf-8")
    return parser


def commands() -> list[list[str]]:
    """Returns every command line of deploy/, as lists of words."""
    found = [service.get("command", []) for service in compose_services().values()]
    for unit in SERVICES:
        lines = re.findall(r"^ExecStart=(.*)$", unit.read_text(encoding="utf-8"), re.MULTILINE)
        found += [shlex.split(line) for line in lines]
    (cluster,) = load("ray-up/cluster.yaml")
    for key in ("head_start_ray_commands", "worker_start_ray_commands"):
        found += [shlex.split(line) for line in cluster[key]]
    # KubeRay makes `ray start` of these.
    names = [[f"--{name}" for name in group["rayStartParams"]] for group in ray_groups()]
    return [*found, *(["ray", "start", *options] for options in names)]
