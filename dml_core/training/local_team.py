"""Trains one trial over several processes of this machine."""

import multiprocessing
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.context import SpawnProcess
from pathlib import Path

from dml_core.config import TrialConfig
from dml_core.data.prepared import open_development
from dml_core.training.determinism import choose_device
from dml_core.training.team import Team, TeamBroken

_SECONDS_TO_LEAVE = 10.0


@contextmanager
def gather_local_team(config: TrialConfig, folder: Path) -> Iterator[Team | None]:
    """Yields the leader's place in a team of trial.workers processes; None where that is 1.

    Args:
        config: the trial's.
        folder: where the trial trains.

    Raises:
        TeamBroken: when a worker died; the training can go on from its checkpoint.
    """
    if config.trial.workers == 1:
        yield None
        return
    from dml_core.training.rendezvous import LOOPBACK, join_team, open_store

    device = choose_device(config.training.device)
    if device.type != "cpu":
        raise ValueError(
            f"trial.workers={config.trial.workers} outside of a study trains on CPUs, since "
            f"nobody gives each worker a GPU of its own. Got training.device={device}. Run a "
            "study, set training.device to cpu, or set trial.workers to 1."
        )
    store, size = open_store(), config.trial.workers
    spawn = multiprocessing.get_context("spawn")
    members = [
        spawn.Process(
            target=_follow,
            args=(config.model_dump_json(), str(folder), rank, store.port),
            name=f"worker {rank} of {size}",
            daemon=True,
        )
        for rank in range(1, size)
    ]
    for member in members:
        member.start()
    try:
        team = join_team(
            store,
            rank=0,
            size=size,
            address=LOOPBACK,
            device=device,
            check_others=lambda: _check(members),
        )
        try:
            yield team
        finally:
            team.close()
        _let_go(members)
    finally:
        _end(members)


def _follow(config_text: str, folder: str, rank: int, port: int) -> None:
    """Works as a member until the leader lets it go, or is gone."""
    from dml_core.training.in_folder import follow_in_folder
    from dml_core.training.rendezvous import LOOPBACK, join_team, visit_store

    # Ctrl-C reaches all processes of a terminal, and the leader decides.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    config = TrialConfig.model_validate_json(config_text)
    try:
        team = join_team(
            visit_store(LOOPBACK, port),
            rank=rank,
            size=config.trial.workers,
            address=LOOPBACK,
            device=choose_device(config.training.device),
        )
        follow_in_folder(config, open_development(config.data), Path(folder), team=team)
        team.close()
    except TeamBroken:
        # The leader says so itself, if it still can.
        raise SystemExit(1) from None


def _check(members: list[SpawnProcess]) -> None:
    for member in members:
        if member.exitcode is not None:
            raise TeamBroken(
                f"{member.name} ended with exit code {member.exitcode}. The same command goes on "
                "from the last checkpoint."
            )


def _let_go(members: list[SpawnProcess]) -> None:
    """Waits for members that have nothing left to do."""
    for member in members:
        member.join(_SECONDS_TO_LEAVE)


def _end(members: list[SpawnProcess]) -> None:
    """Ends what is left of the team."""
    for member in members:
        member.kill()
        member.join()
