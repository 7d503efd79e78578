"""Joins a Ray cluster, or starts one on this machine that its owner alone can reach."""

import contextlib
import gc
import logging
import os
import secrets
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import psutil

from dml_core.config.pipeline import RayConfig
from tasks.guardian import guarded_folder, remember_processes
from tasks.process import (
    MAX_RESTARTS,
    can_restart,
    count_restarts,
    exit_at_once,
    is_stopping,
    note_stop,
    restart,
)
from tasks.sources import PACKAGES, imported_tree, is_pinned
from tasks.sweep.nodes import TrialNeed, count_most, need_of

LOGGER = logging.getLogger(__name__)


class RayUnsafe(ValueError):
    """A cluster would be open to other users; the message says what to set."""


def provide_token() -> None:
    """Restricts our own cluster to this user, by a token that only this user can read."""
    # Ray reads the mode when it is imported; without one it turns tokens on later.
    if "ray" not in sys.modules:
        os.environ["RAY_AUTH_MODE"] = "token"
    if os.environ.get("RAY_AUTH_TOKEN") or os.environ.get("RAY_AUTH_TOKEN_PATH"):
        return
    # Each process of Ray reads the token once, so the file lives as long as this process.
    token = guarded_folder() / "token"
    descriptor = os.open(token, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w", encoding="ascii") as file:
        file.write(secrets.token_hex(32))
    os.environ["RAY_AUTH_TOKEN_PATH"] = str(token)


def stay_on_loopback() -> None:
    """Restricts our own cluster to this machine, whether or not Ray is imported already."""
    # With this switch, which exists because some firewalls prompt for every open port, Ray's
    # servers listen on 127.0.0.1 instead of on all addresses. Ray reads the variable when it is
    # imported, and its constant when it starts a node.
    os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"
    if "ray" in sys.modules:
        from ray._private import ray_constants

        ray_constants.ENABLE_RAY_CLUSTER = False


def check_token() -> None:
    """Refuses a cluster without authentication, and warns about a token that others can read."""
    if os.environ.get("RAY_AUTH_MODE") == "disabled":
        raise RayUnsafe(
            "RAY_AUTH_MODE=disabled lets anyone who reaches the cluster run programs on it. "
            "Set RAY_AUTH_MODE=token and RAY_AUTH_TOKEN_PATH for all nodes and for this command, "
            "or use --set ray.address=local."
        )
    token = Path(os.environ.get("RAY_AUTH_TOKEN_PATH") or "~/.ray/auth_token").expanduser()
    if token.is_file() and token.stat().st_mode & 0o077:
        LOGGER.warning(
            "others can read the token of the Ray cluster in %s, and with it run programs there. "
            "Run: chmod 600 %s", token, token,
        )  # fmt: skip


_QUIET = {
    "RAY_AIR_NEW_OUTPUT": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_CHDIR_TO_TRIAL_DIR": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",
    "TUNE_DISABLE_SIGINT_HANDLER": "1",
    "TUNE_DISABLE_STRICT_METRIC_CHECKING": "1",
    "TUNE_WARN_EXCESSIVE_EXPERIMENT_CHECKPOINT_SYNC_THRESHOLD_S": "0",
    # Tune's snapshots list all trials so far, and a sweep resumes from its ledger instead.
    "TUNE_GLOBAL_CHECKPOINT_S": "1e9",
}


_START_TRIES = 3
"""Ray waits half a minute for its own processes, which is too short on a very busy machine."""


class RayUnreachable(ValueError):
    """There is no usable cluster; the message has the address and the remedy."""


_kept: list[contextlib.ExitStack] = []
"""The clusters that `kept_cluster` leaves at its end; empty outside of it."""


@contextmanager
def kept_cluster() -> Iterator[None]:
    """Lets all stages of all studies within the block use the cluster that the first of them joins.

    Starting one takes longer than a small study. If nothing has to run, none is joined.
    """
    with contextlib.ExitStack() as stack:
        _kept.append(stack)
        try:
            yield
        finally:
            _kept.pop()


@contextmanager
def connect(config: RayConfig, *, workers: int = 1) -> Iterator[None]:
    """Joins the cluster that the configuration names, and leaves it at the end.

    Within `kept_cluster` it is left at the end of that block.

    Args:
        config: which cluster.
        workers: of one trial; a cluster on this machine has room for them.

    Raises:
        RayUnreachable: within ray.connect_timeout_seconds or shortly after.
    """
    if _kept:
        _kept[-1].enter_context(_connect(config, workers))
        yield
    else:
        with _connect(config, workers):
            yield


@contextmanager
def _connect(config: RayConfig, workers: int) -> Iterator[None]:
    """Joins a cluster for the block.

    A cluster on this machine (`local`) is started and stopped here; any other is left running.
    A process that has joined a cluster already stays there, before and after.

    Raises:
        RayUnreachable: within ray.connect_timeout_seconds or shortly after.
    """
    os.environ.update({key: value for key, value in _QUIET.items() if key not in os.environ})
    if config.address == "local":
        provide_token()
        stay_on_loopback()
    else:
        check_token()
    import ray

    if ray.is_initialized():
        yield
        return
    with _own_sigterm() as take_over:
        _start(config, workers) if config.address == "local" else _join(config)
        take_over()
        try:
            with _watched(config):
                yield
        finally:
            leave()


def leave() -> None:
    """Leaves the cluster, with the cyclic garbage collector off.

    Ray ends the whole process with code 1 when an ObjectRef is freed after its core worker is gone.
    Tune leaves such references in cycles, which a collection in any thread may free at that moment.
    """
    import ray

    gc.collect()
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        ray.shutdown()
    finally:
        if was_enabled:
            gc.enable()


def _watched(config: RayConfig) -> AbstractContextManager[None]:
    import ray

    if config.address == "local":
        return watched_local_cluster()
    return watched_joined_cluster(ray.get_runtime_context().gcs_address)


def count_concurrent(config: RayConfig, needs: Sequence[TrialNeed] = ()) -> int:
    """Returns how many trials run on the joined cluster at once.

    Trials of different needs are counted as the smallest: larger ones wait until there is room. On
    an elastic cluster these are as many as it is to start nodes for.

    Args:
        config: the limits.
        needs: resources of the trials, in any order; by default one worker.

    Raises:
        RayUnreachable: if the cluster has no room for one of them.
    """
    needs = needs or [need_of(config)]
    most = count_most(config, needs)
    if config.elastic and config.address != "local":
        return most
    import ray

    there: dict[str, float] = ray.cluster_resources()  # type: ignore[no-untyped-call]
    cpus, gpus = there.get("CPU", 0.0), there.get("GPU", 0.0)
    rooms = {need: need.count(cpus=cpus, gpus=gpus) for need in needs}
    if small := [need for need, room in rooms.items() if room < 1]:
        raise RayUnreachable(
            f"the Ray cluster {config.address} must have room for a trial of {small[0].cpus:g} "
            f"CPUs and {small[0].gpus:g} GPUs (ray.cpus_per_trial={config.cpus_per_trial:g}, "
            f"ray.gpus_per_trial={config.gpus_per_trial:g} or trial.gpus_per_worker, for each of "
            f"trial.workers), or none ever starts. It has {cpus:g} CPUs and {gpus:g} GPUs. "
            "Lower these, or add a node; where an autoscaler adds nodes, set ray.elastic=true."
        )
    room = max(rooms.values())
    return min(room, most) if most else room


def _start(config: RayConfig, workers: int) -> None:
    import ray

    # A machine without enough cores for the configured trial still runs one at a time.
    cores = max(len(os.sched_getaffinity(0)), int(-(-config.cpus_per_trial * workers // 1)))
    # In a folder of this user alone: Ray's default folder is writable for all users.
    folder = guarded_folder() / "ray"
    for left in reversed(range(_START_TRIES)):
        try:
            ray.init(
                address="local",
                num_cpus=cores,
                _temp_dir=str(folder),
                # Tune's workers have their own environment, so workers that Ray starts ahead would
                # be ended unused.
                _system_config={"prestart_worker_first_driver": False},
                runtime_env=make_runtime_env() if is_pinned() else None,
                **_quietly(),
            )
            break
        except Exception as error:
            with contextlib.suppress(Exception):
                leave()
            if not left:
                raise RayUnreachable(_say_no_start(str(error))) from error
    remember_processes()


def _join(config: RayConfig) -> None:
    import ray

    address = config.address
    if address.startswith("ray://"):
        raise RayUnreachable(
            f"ray.address must be local, auto or host:port, since a sweep is led from inside its "
            f"cluster and outlives no lost client connection. Got {address}. Run this command on "
            "a node of the cluster with ray.address=auto."
        )
    if address != "auto":
        _wait_for_port(address, config.connect_timeout_seconds)
    try:
        ray.init(address=address, runtime_env=make_runtime_env(), **_quietly())
    except Exception as error:
        with contextlib.suppress(Exception):
            leave()
        raise RayUnreachable(_say_unreachable(address, str(error))) from error


def make_runtime_env() -> dict[str, Any]:
    """Returns the runtime environment that ships this project's packages to the workers."""
    root = imported_tree()
    if is_pinned():
        # Without a working_dir, workers import from the driver's current folder first,
        # which may have been edited since the run began.
        return {"working_dir": str(root)}
    modules = [str(root / name) for name in PACKAGES]
    return {"py_modules": modules, "excludes": ["__pycache__", "*.pyc"]}


def _quietly() -> dict[str, Any]:
    return {"include_dashboard": False, "log_to_driver": False, "logging_level": "ERROR"}


def _wait_for_port(address: str, timeout_seconds: float) -> None:
    host, _, port = address.rpartition(":")
    deadline, problem = time.monotonic() + timeout_seconds, "no answer"
    while (left := deadline - time.monotonic()) > 0:
        try:
            socket.create_connection((host, int(port)), timeout=left).close()
            return
        except OSError as error:
            problem = str(error)
            time.sleep(min(0.5, max(0.0, deadline - time.monotonic())))
    raise RayUnreachable(_say_unreachable(address, f"{problem} for {timeout_seconds:g} s"))


def _say_no_start(problem: str) -> str:
    first = problem.strip().splitlines()[0][:300] if problem.strip() else "no answer"
    return (
        f"Ray could not be started on this machine in {_START_TRIES} tries: {first} The machine "
        "may be too busy, or its memory or disk for temporary files too small: see dml doctor. "
        "Then run the same command again."
    )


def _say_unreachable(address: str, problem: str) -> str:
    first = problem.strip().splitlines()[0][:300] if problem.strip() else "no answer"
    return (
        f"the Ray cluster at ray.address={address} cannot be joined: {first}. Start it with "
        "`ray start --head`, make this machine a node of it with `ray start --address=host:port`, "
        "let RAY_AUTH_TOKEN_PATH name the cluster's token file, or use --set ray.address=local."
    )


@contextmanager
def _own_sigterm() -> Iterator[Callable[[], None]]:
    """Yields a function that makes SIGTERM end the block as Ctrl-C does; restores the handler.

    Ray puts its own handler there, and lets no other exception than a KeyboardInterrupt through.
    """
    if threading.current_thread() is not threading.main_thread():
        yield lambda: None
        return
    before = signal.getsignal(signal.SIGTERM)
    received: list[int] = []

    def stop(number: int, _: FrameType | None) -> None:
        received.append(number)
        note_stop()
        raise KeyboardInterrupt

    def take_over() -> None:
        signal.signal(signal.SIGTERM, stop)

    try:
        yield take_over
    finally:
        signal.signal(signal.SIGTERM, before if before is not None else signal.SIG_DFL)
        if received and callable(before):
            signal.raise_signal(signal.SIGTERM)


# From here on: noticing that a cluster is gone as a whole. Ray 2.60 offers a driver no way to
# continue: calls to a GCS that is gone block in C++, deaf to signals and exceptions, and after a
# minute Ray ends the process without saying what to do.

SECONDS_BETWEEN_LOOKS = 0.5
SILENT_SECONDS = 45.0
"""Longest silence of a joined cluster; after 60 s Ray ends the process."""
EXIT_CODE = 2
_LOCAL_SERVERS = ("gcs_server", "raylet")

_lost = threading.Event()


def is_cluster_lost() -> bool:
    """Returns whether the watched cluster is gone; no trial fails for that reason."""
    return _lost.is_set()


@contextmanager
def watched_local_cluster() -> Iterator[None]:
    """Watches the cluster that this process has started.

    Where its GCS or its raylet is gone, the command is started anew, `MAX_RESTARTS` times. It
    starts another cluster and resumes from the trials' journals, as after kill -9.
    """
    # After a restart the dead processes of the last cluster are still children of this one.
    children = filter(_is_alive, psutil.Process().children())
    servers = [child for child in children if _name_of(child) in _LOCAL_SERVERS]

    def lose_local() -> None:
        what = "the local Ray cluster was killed"
        if can_restart():
            LOGGER.warning(
                "%s. The command restarts with a new one (%d of %d) and resumes from the last "
                "epochs.", what, count_restarts() + 1, MAX_RESTARTS,
            )  # fmt: skip
            restart()
        often = f" after {count_restarts()} restarts" if count_restarts() else ""
        _end(f"{what}{often}, so the sweep was stopped; all finished trials and epochs are kept.")

    with _watching(lambda: not all(map(_is_alive, servers)), lose_local):
        yield


@contextmanager
def watched_joined_cluster(address: str) -> Iterator[None]:
    """Watches a cluster that others run; ends the command after a long silence.

    Args:
        address: of its GCS, as host:port.
    """
    answered = [time.monotonic()]

    def is_silent() -> bool:
        if _answers(address):
            answered[0] = time.monotonic()
        return time.monotonic() - answered[0] > SILENT_SECONDS

    def lose_joined() -> None:
        _end(
            f"the Ray cluster at {address} has not answered for {SILENT_SECONDS:g} s, so the sweep "
            "was stopped; all finished trials and epochs are kept. Start the cluster again."
        )

    with _watching(is_silent, lose_joined):
        yield


@contextmanager
def _watching(is_gone: Callable[[], bool], lose: Callable[[], None]) -> Iterator[None]:
    is_over = threading.Event()

    def watch() -> None:
        while not is_over.wait(SECONDS_BETWEEN_LOOKS):
            # A Ctrl-C may end the cluster too; a command that is stopped must not restart.
            if is_gone() and not is_stopping():
                _lost.set()
                lose()

    watcher = threading.Thread(target=watch, name="ray-watch", daemon=True)
    watcher.start()
    try:
        yield
    finally:
        is_over.set()
        watcher.join()


def _end(message: str) -> None:
    # No exception reaches a main thread that is blocked in C++.
    LOGGER.error("dml: %s The same command resumes.", message)
    exit_at_once(EXIT_CODE)


def _answers(address: str) -> bool:
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host, int(port)), timeout=5.0).close()
    except OSError:
        return False
    return True


def _is_alive(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False


def _name_of(process: psutil.Process) -> str:
    try:
        return str(process.name())
    except psutil.Error:
        return ""
