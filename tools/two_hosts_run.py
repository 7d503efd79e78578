"""Creates two hosts and a tiny project, starts the servers, and runs the study."""

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
from tasks.versioning.remote import push_data
from tasks.versioning.session import quiet, track
from tools.hosts import Host, ProgramEnded, wait_for_text

PROGRAMS = Path(sys.executable).parent
PATIENCE_SECONDS = 600.0
ADDRESS_A, ADDRESS_B = "10.77.0.1", "10.77.0.2"
RAY, MLFLOW = f"{ADDRESS_A}:6379", f"{ADDRESS_A}:5000"
REMOTE = f"http://{ADDRESS_B}:8000"
ON_BOTH = {
    "ray.address": RAY,
    "data_access.mode": "dvc",
    "mlflow.tracking_uri": f"http://{MLFLOW}",
}
ALONE = {"ray.address": "local"}
ATTEMPTS = 4
"""Attempts to start the hosts: a Ray node gives up if a part of its start takes 15 s."""
SLOW_START = "node timed out during startup"
"""Ray prints this when it gives up."""
_STOPS = (signal.SIGINT, signal.SIGTERM)
_REMOVED_VARIABLES = ("RAY_", "MLFLOW_", "PREFECT_", "DML_", "DVC_", "AWS_")

Say = Callable[[str], None]
PARAMS = Path(__file__).parents[1] / "params.yaml"
TINY = {
    "data.max_classes": 16,
    "data.images_per_class": 8,
    "sampler.batch_size": 16,
    "sampler.class_ratio": None,
    "sampler.samples_per_class": 4,
    "model.width": 4,
    "model.embedding_dim": 8,
    # Long enough that both nodes train at the same time.
    "training.epochs": 40,
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
    """Two connected hosts, and a third one alone for comparison."""

    def __init__(self, say: Say, *, command: Sequence[str], databases: Path | None) -> None:
        """Prepares the hosts; entering the context creates them.

        Args:
            say: called with each line of the log.
            command: arguments of `dml` that run the study.
            databases: folder with empty databases of Prefect and MLflow; None creates them.
        """
        self.root = Path(tempfile.mkdtemp(prefix="2h-"))
        self.shared = self.root / "shared"
        """The shared disk: both hosts see it."""
        self.project = self.shared / "project"
        self.storage = self.root / "b" / "storage"
        self.say = say
        self._command = command
        self._databases = databases
        environment = self._make_environment()
        self.a, self.b, self.alone = (
            Host(f"host-{name}", address, folder=self.root / name,
                 environment={**environment, "HOME": str(self.root / name / "home")})
            for name, address in (("a", ADDRESS_A), ("b", ADDRESS_B), ("alone", "127.0.0.1"))
        )  # fmt: skip

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
        """Runs the study over both hosts, and the same study on the third."""
        own = (self.project / "data", self.project / ".dvc")
        self._run(self.a, self.project, ON_BOTH, uncovered=own)
        for host in (self.a, self.b):
            host.stop()
        self._run(self.alone, self.root / "alone" / "project", ALONE)

    def shorten(self, line: str) -> str:
        """Returns a line without paths of this machine, colours and rulers."""
        line = line.replace(str(self.root), "ROOT").replace(f"{PROGRAMS}/", "")
        return re.sub(r"\x1b\[[0-9;]*m|─{9,}", "", line).rstrip()

    def _stop_hosts(self) -> None:
        for host in (self.a, self.b, self.alone):
            host.stop()

    def _make_files(self) -> None:
        make_project(self.project, storage=self.storage, remote=REMOTE, databases=self._databases)
        shutil.copytree(self.project, self.root / "alone" / "project")
        (self.root / "ray").mkdir()

    def _make_hosts(self) -> None:
        for host in (self.a, self.b, self.alone):
            (host.folder / "home").mkdir(parents=True, exist_ok=True)
            host.start()
        self.a.connect(self.b)
        for host, other in ((self.a, self.b), (self.b, self.a)):
            host.cover(self.root / "ray", host.folder / "ray")
            host.cover(self.project / "data", host.folder / "data")
            host.cover(self.project / ".dvc", host.folder / "dvc")
            host.cover(other.folder, host.folder / "unseen")
            host.run(["sh", "-c", 'test -z "$(ls -A "$0")"', str(self.project / "data")])
            self.say(f"{host.name}: {host.address}, its data folder is empty")
        self._start_servers()

    def _start_servers(self) -> None:
        mlflow = self.a.folder / "mlflow"
        mlflow.mkdir(exist_ok=True)
        if self._databases:
            shutil.copyfile(self._databases / "mlflow.db", mlflow / "mlflow.db")
        server = ["mlflow", "server", "--host", ADDRESS_A, "--port", "5000", "--workers", "1"]
        server += ["--backend-store-uri", f"sqlite:///{mlflow}/mlflow.db"]
        server += ["--artifacts-destination", str(mlflow / "artifacts")]
        server += ["--allowed-hosts", MLFLOW]
        head = ["ray", "start", "--head", f"--node-ip-address={ADDRESS_A}", "--port=6379"]
        head += ["--num-cpus=1", f"--temp-dir={self.root / 'ray'}", "--include-dashboard=false"]
        node = ["ray", "start", f"--address={RAY}", f"--node-ip-address={ADDRESS_B}"]
        node += ["--num-cpus=1"]
        remote = ["python", "-u", "-m", "http.server", "8000", "--bind", ADDRESS_B]
        remote += ["--directory", str(self.storage)]
        block = ["--block", "--disable-usage-stats"]
        self._start(self.b, remote, "remote.log", "Serving HTTP")
        tracking = self._start(self.a, server, "mlflow.log", "")
        self._start(self.a, [*head, *block], "ray.log", "Ray runtime started")
        self._start(self.b, [*node, *block], "ray.log", "Ray runtime started")
        wait_for_text(tracking, self.a.folder / "mlflow.log", "startup complete", PATIENCE_SECONDS)

    def _start(
        self, host: Host, command: list[str], log: str, text: str
    ) -> "subprocess.Popen[bytes]":
        self.say(f"{host.name}$ {' '.join(command)}")
        path = host.folder / log
        command = [str(PROGRAMS / command[0]), *command[1:]]
        process = host.popen(command, log=path, folder=host.folder)
        wait_for_text(process, path, text, PATIENCE_SECONDS)
        return process

    def _run(
        self, host: Host, folder: Path, values: Mapping[str, str], uncovered: tuple[Path, ...] = ()
    ) -> None:
        command = ["dml", *self._command]
        for key, value in values.items():
            command += ["--set", f"{key}={value}"]
        self.say(f"{host.name}$ {' '.join(command)}")
        started = time.monotonic()
        program = [str(PROGRAMS / "dml"), *command[1:]]
        for left in reversed(range(ATTEMPTS)):
            log = host.folder / "study.log"
            process = host.popen(program, log=log, folder=folder, uncovered=uncovered)
            code = process.wait(timeout=PATIENCE_SECONDS)
            said = log.read_text(errors="replace")
            # The same command resumes.
            if not code or not left or SLOW_START not in said:
                break
        for line in said.splitlines():
            self.say(f"    {line}")
        if code:
            raise ProgramEnded(f"the study on {host.name} ended with code {code}")
        self.say(f"    ({time.monotonic() - started:.0f} s)")

    def _make_environment(self) -> dict[str, str]:
        self.shared.mkdir()
        token = self.shared / "token"
        token.touch(mode=0o600)
        token.write_text(secrets.token_hex(32), encoding="ascii")
        (self.root / "t").mkdir()
        kept = {
            key: value
            for key, value in os.environ.items()
            if not key.startswith(_REMOVED_VARIABLES) and "proxy" not in key.lower()
        }
        return {
            **kept,
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN_PATH": str(token),
            "RAY_USAGE_STATS_ENABLED": "0",
            # Generous limits, for a busy machine.
            "RAY_agent_register_timeout_ms": "180000",
            "RAY_worker_register_timeout_seconds": "180",
            "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
            "MLFLOW_DISABLE_TELEMETRY": "true",
            "OMP_NUM_THREADS": "1",
            "TMPDIR": str(self.root / "t"),
        }


@contextmanager
def _signals_ignored() -> Iterator[None]:
    """Ignores SIGINT and SIGTERM within the block."""
    before = {number: signal.signal(number, signal.SIG_IGN) for number in _STOPS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def make_project(folder: Path, *, storage: Path, remote: str, databases: Path | None) -> None:
    """Creates a DVC project with prepared data, and pushes the data to a storage.

    Args:
        folder: folder of the project.
        storage: folder of the DVC remote.
        remote: URL at which the hosts reach the storage.
        databases: folder with empty databases of Prefect and MLflow; None creates them.
    """
    (folder / "studies").mkdir(parents=True)
    (folder / "studies" / "tiny.yaml").write_text(STUDY, encoding="utf-8")
    params = json.dumps(unflatten({**load_params(PARAMS), **TINY}), indent=1)
    (folder / "params.yaml").write_text(params, encoding="utf-8")
    prepared = _prepare(folder)
    with quiet():
        Repo.init(str(folder), no_scm=True).close()
    (folder / ".dvc" / "config").write_text(
        "[core]\n    no_scm = true\n    remote = storage\n"
        f"['remote \"storage\"']\n    url = {remote}\n"
        f"['remote \"filled\"']\n    url = {storage}\n",
        encoding="utf-8",
    )
    track(folder, prepared)
    push_data(folder, remote="filled")
    if databases is not None:
        for name in DATABASES:
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(databases / name, folder / name)


def _prepare(folder: Path) -> Path:
    data = load_trial_config(folder / "params.yaml", []).data
    there = data.model_copy(update={"prepared_root": str(folder / data.prepared_root)})
    prepare_dataset(list_images(there), there, workers=1)
    return there.prepared_path
