"""Creates hosts with a bucket between them and a tiny project, and runs the study."""

import json
import os
import re
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from dvc.repo import Repo

from dml_core.config.loading import load_params, load_trial_config, unflatten
from dml_core.data.prepare import prepare_dataset
from dml_core.data.sources.registry import list_images
from tasks.versioning.session import quiet, track
from tools.hosts import Host, ProgramEnded, wait_for_text

PROGRAMS = Path(sys.executable).parent
TREE = Path(__file__).resolve().parents[1]
PATIENCE_SECONDS = 600.0
ADDRESSES = {name: f"10.77.0.{n}" for n, name in enumerate(("a", "b", "c", "store"), start=1)}
RAY = f"{ADDRESSES['a']}:6379"
BUCKET = "dml"
STORE = f"http://{ADDRESSES['store']}:9000"
ON_BOTH = {
    "ray.address": RAY,
    "data_access.mode": "dvc",
    "sweep.storage": f"s3://{BUCKET}/trials",
}
ALONE = {"ray.address": "local"}
ATTEMPTS = 4
"""Attempts to start the hosts: a Ray node gives up if a part of its start takes 15 s."""
SLOW_START = "node timed out during startup"
"""Ray prints this when it gives up."""
_STOPS = (signal.SIGINT, signal.SIGTERM)
_REMOVED_VARIABLES = ("RAY_", "MLFLOW_", "PREFECT_", "DML_", "DVC_", "AWS_")

Say = Callable[[str], None]
DATASET = "glyphs"
TINY = {
    "data.name": DATASET,
    "data.max_classes": 16,
    "data.images_per_class": 8,
    "sampler.batch_size": 16,
    "sampler.class_ratio": None,
    "sampler.samples_per_class": 4,
    "model.width": 4,
    "model.embedding_dim": 8,
    "training.epochs": 10,
    "evaluation.clustering": False,
    # Generous limits, for a busy machine.
    "mlflow.timeout_seconds": 300,
    "ray.connect_timeout_seconds": 300,
}
STUDY = """\
question: Does a wider embedding help?
arms:
  small: {model.embedding_dim: 4}
  large: {model.embedding_dim: 8}
nuisance: {optimizer.learning_rate: {log_uniform: [0.001, 0.01]}}
trials_per_arm: 2
edge_rounds: 0
seeds: [0, 1]
"""
DATABASES = (Path(".dml") / "prefect" / "prefect.db", Path("mlflow.db"))


class TwoHosts:
    """Hosts A and B with a cluster, C which comes later, one alone, and the store's."""

    def __init__(self, say: Say, *, sweep_only: bool, databases: Path | None) -> None:
        """Prepares the hosts; entering the context creates them.

        Args:
            say: called with each line of the log.
            sweep_only: run no evaluation, no report and no comparison with one host.
            databases: folder with empty databases of Prefect and MLflow; None creates them.
        """
        self.root = Path(tempfile.mkdtemp(prefix="2h-"))
        """Every host sees its own folder at this path."""
        self.say = say
        self.sweep_only = sweep_only
        self._databases = databases
        environment = self._make_environment()
        self.a, self.b, self.c, self.store = (
            Host(f"host-{name}", address, folder=self.root / name, environment=environment)
            for name, address in ADDRESSES.items()
        )
        self.alone = Host(
            "host-alone", "127.0.0.1", folder=self.root / "alone", environment=environment
        )
        self._hosts = (self.a, self.b, self.c, self.alone, self.store)

    def __enter__(self) -> "TwoHosts":
        try:
            self._make_files()
            for left in reversed(range(ATTEMPTS)):
                try:
                    self._make_hosts()
                    return self
                except ProgramEnded as error:
                    if not left:
                        raise
                    self._stop_hosts()
                    self.say(f"retry: {str(error).splitlines()[0]}")
        except BaseException:
            self.__exit__()
            raise
        raise AssertionError

    def __exit__(self, *_: object) -> None:
        # A second Ctrl-C must not interrupt the removal.
        with _signals_ignored():
            self._stop_hosts()
            shutil.rmtree(self.root, ignore_errors=True)

    def run_study(self) -> None:
        """Runs the study over both hosts, its sweep again on a later one, and all on one alone."""
        sweep, everything = ["stage", "sweep", "tiny"], ["run", "tiny"]
        command = sweep if self.sweep_only else everything
        self._run(self.a, command, ON_BOTH)
        for host in (self.a, self.b):
            host.stop()
            self.say(f"{host.name}: stopped")
        self._run(self.c, ["data", "pull"])
        self._run(self.c, sweep, ON_BOTH)
        if not self.sweep_only:
            self._run(self.alone, command, ALONE)

    def project(self, host: Host) -> Path:
        """Returns the project of a host, as this process sees it."""
        return host.folder / "project"

    def _stop_hosts(self) -> None:
        for host in self._hosts:
            host.stop()

    def _make_files(self) -> None:
        token = secrets.token_hex(32)
        for host in self._hosts:
            for name in ("home", "ray", "t"):
                (host.folder / name).mkdir(parents=True)
            (host.folder / "token").touch(mode=0o600)
            (host.folder / "token").write_text(token, encoding="ascii")
        first = self.project(self.a)
        make_project(first, databases=self._databases)
        shutil.copytree(first, self.project(self.alone))
        # As a clone of the repository: DVC's files name the data.
        ignored = shutil.ignore_patterns(DATASET, "cache", "tmp")
        for host in (self.b, self.c):
            shutil.copytree(first, self.project(host), ignore=ignored)

    def _make_hosts(self) -> None:
        for host in self._hosts:
            host.start()
        self.store.connect(self.a, self.b, self.c)
        for host in self._hosts:
            host.seal(self.root)
        for host in (self.a, self.b, self.c):
            has_data = bool(list(self.project(host).rglob("dataset.json")))
            what = "the project and its data" if has_data else "the project without data"
            self.say(f"{host.name}: {host.address}, its own disk with {what}")
        self._start_servers()

    def _start_servers(self) -> None:
        server = ["moto_server", "--host", self.store.address, "--port", STORE.rpartition(":")[2]]
        head = ["ray", "start", "--head", f"--node-ip-address={self.a.address}", "--port=6379"]
        head += ["--num-cpus=1", f"--temp-dir={self.root / 'ray'}", "--include-dashboard=false"]
        node = ["ray", "start", f"--address={RAY}", f"--node-ip-address={self.b.address}"]
        node += ["--num-cpus=1"]
        block = ["--block", "--disable-usage-stats"]
        started = self._start(self.a, [*head, *block], "ray.log")
        self._start(self.store, server, "store.log")
        self._run(self.store, ["python", f"{TREE}/deploy/make_buckets.py", STORE, BUCKET])
        self._run(self.a, ["data", "push"])
        wait_for_text(started, self.a.folder / "ray.log", "Ray runtime started", PATIENCE_SECONDS)
        started = self._start(self.b, [*node, *block], "ray.log")
        wait_for_text(started, self.b.folder / "ray.log", "Ray runtime started", PATIENCE_SECONDS)

    def _start(self, host: Host, command: list[str], log: str) -> "subprocess.Popen[bytes]":
        self.say(f"{host.name}$ {' '.join(command)}")
        command = [str(PROGRAMS / command[0]), *command[1:]]
        return host.popen(command, log=host.folder / log, folder=self.root)

    def _run(
        self, host: Host, command: Sequence[str], values: Mapping[str, str] | None = None
    ) -> None:
        """Runs a command to its end; one of `dml` unless it names Python."""
        command = command if command[0] == "python" else ["dml", *command]
        sets = [
            word for key, value in (values or {}).items() for word in ("--set", f"{key}={value}")
        ]
        command = [*command, *sets]
        self.say(f"{host.name}$ {' '.join(command)}")
        started = time.monotonic()
        program = [str(PROGRAMS / command[0]), *command[1:]]
        folder = self.root / "project" if self.project(host).exists() else self.root
        for left in reversed(range(ATTEMPTS)):
            log = host.folder / "command.log"
            code = host.popen(program, log=log, folder=folder).wait(timeout=PATIENCE_SECONDS)
            said = log.read_text(errors="replace")
            # The same command resumes.
            if not code or not left or SLOW_START not in said:
                break
        for line in said.splitlines():
            self.say(f"    {line}")
        if code:
            raise ProgramEnded(f"`{command[0]} {command[1]}` on {host.name} ended with {code}")
        self.say(f"    ({time.monotonic() - started:.0f} s)")

    def _make_environment(self) -> dict[str, str]:
        kept = {
            key: value
            for key, value in os.environ.items()
            if not key.startswith(_REMOVED_VARIABLES) and "proxy" not in key.lower()
        }
        return {
            **kept,
            "HOME": str(self.root / "home"),
            "PYTHONPATH": str(TREE),
            "TMPDIR": str(self.root / "t"),
            "DVC_SITE_CACHE_DIR": str(self.root / "t" / "dvc"),
            "DVC_NO_ANALYTICS": "1",
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN_PATH": str(self.root / "token"),
            "RAY_USAGE_STATS_ENABLED": "0",
            # Generous limits, for a busy machine.
            "RAY_agent_register_timeout_ms": "180000",
            "RAY_worker_register_timeout_seconds": "180",
            "AWS_ENDPOINT_URL": STORE,
            "AWS_ACCESS_KEY_ID": "made-up",
            "AWS_SECRET_ACCESS_KEY": "made-up",
            "AWS_DEFAULT_REGION": "us-east-1",
            "MLFLOW_DISABLE_TELEMETRY": "true",
            "OMP_NUM_THREADS": "1",
        }


def shorten(line: str, root: Path) -> str:
    """Returns a line without paths of this machine, colours and rulers."""
    for path, name in ((f"{PROGRAMS}/", ""), (root, "ROOT"), (TREE, "TREE")):
        line = line.replace(str(path), name)
    return re.sub(r"\x1b\[[0-9;]*m|─{9,}", "", line).rstrip()


@contextmanager
def _signals_ignored() -> Iterator[None]:
    """Ignores SIGINT and SIGTERM within the block."""
    before = {number: signal.signal(number, signal.SIG_IGN) for number in _STOPS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def make_project(folder: Path, *, databases: Path | None) -> None:
    """Creates a DVC project with prepared data, whose remote is in the bucket.

    Args:
        folder: folder of the project.
        databases: folder with empty databases of Prefect and MLflow; None creates them.
    """
    write_files(folder)
    prepared = _prepare(folder)
    with quiet():
        Repo.init(str(folder), no_scm=True).close()
    (folder / ".dvc" / "config").write_text(
        "[core]\n    no_scm = true\n    remote = storage\n"
        f"['remote \"storage\"']\n    url = s3://{BUCKET}/dvc\n",
        encoding="utf-8",
    )
    track(folder, prepared)
    if databases is not None:
        for name in DATABASES:
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(databases / name, folder / name)


def write_files(folder: Path) -> None:
    """Writes the parameters and the study of a tiny project."""
    (folder / "studies").mkdir(parents=True)
    (folder / "studies" / "tiny.yaml").write_text(STUDY, encoding="utf-8")
    params = json.dumps(unflatten({**load_params(TREE / "params.yaml"), **TINY}), indent=1)
    (folder / "params.yaml").write_text(params, encoding="utf-8")


def _prepare(folder: Path) -> Path:
    data = load_trial_config(folder / "params.yaml", []).data
    there = data.model_copy(update={"prepared_root": str(folder / data.prepared_root)})
    prepare_dataset(list_images(there), there, workers=1)
    return there.prepared_path
