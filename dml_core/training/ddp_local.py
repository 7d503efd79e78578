"""Starts the ranks of one trial on this machine, and lets ranks find each other."""

import multiprocessing
import os
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from multiprocessing.context import SpawnProcess
from pathlib import Path

import psutil
import torch
from torch import distributed
from torch.distributed import PrefixStore, Store, TCPStore  # type: ignore[attr-defined]

from dml_core.config import TrialConfig
from dml_core.data.prepared import open_development
from dml_core.training.ddp import Team, TeamBroken, _ignore
from dml_core.training.determinism import choose_device

LOOPBACK = "127.0.0.1"
# Within a step members are at most an augmentation apart; longer waits are asked in the store.
_LONGEST_STEP = timedelta(minutes=30)


def open_store(host: str = LOOPBACK) -> TCPStore:
    """Returns a store that listens at a free port of one address of this machine, and no other."""
    listener = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    listener.bind((host, 0))
    listener.listen()
    port = int(listener.getsockname()[1])
    # The store owns the socket from here on.
    return TCPStore(
        host,
        port,
        is_master=True,
        wait_for_workers=False,
        master_listen_fd=listener.detach(),
        timeout=_LONGEST_STEP,
    )


def visit_store(host: str, port: int) -> TCPStore:
    """Returns the store that the leader has opened."""
    return TCPStore(host, port, is_master=False, wait_for_workers=False, timeout=_LONGEST_STEP)


def join_team(
    store: Store,
    *,
    rank: int,
    size: int,
    address: str,
    device: torch.device,
    check_others: Callable[[], None] = _ignore,
) -> Team:
    """Returns this process's place in a team, once all members are there.

    Args:
        store: the leader's.
        rank: which member this is; 0 leads.
        size: how many there are.
        address: of this machine, at which the other members reach it.
        device: where the trial trains; members talk through NCCL on GPUs and gloo elsewhere.
        check_others: raises TeamBroken where another member is known to be gone.
    """
    team = Team(store, rank=rank, size=size, check_others=check_others)
    team.meet("joined")
    interface = find_interface(address)
    os.environ.update(GLOO_SOCKET_IFNAME=interface, NCCL_SOCKET_IFNAME=interface)
    if device.type == "cuda":
        torch.cuda.set_device(device)
    distributed.init_process_group(
        "nccl" if device.type == "cuda" else "gloo",
        store=PrefixStore("group", store),
        rank=rank,
        world_size=size,
        timeout=_LONGEST_STEP,
    )
    return team


def find_interface(address: str) -> str:
    """Returns the name of the network interface with an address of this machine.

    Raises:
        ValueError: when none has it.
    """
    for name, addresses in psutil.net_if_addrs().items():
        if any(known.address == address for known in addresses):
            return name
    raise ValueError(
        f"the workers of a trial reach each other at the address of their Ray node, and no network "
        f"interface of this machine has {address}. Start the node with --node-ip-address."
    )


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
