"""Brings the ranks of one trial together, and starts them on this machine."""

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
from dml_core.devices import choose_device
from dml_core.training.ddp import WorkerGroup, WorkerLost, assume_alive

LOOPBACK = "127.0.0.1"
# Within a step ranks are at most an augmentation apart; longer waits poll the store.
_COLLECTIVE_TIMEOUT = timedelta(minutes=30)
_SECONDS_TO_EXIT = 10.0


def start_store(host: str = LOOPBACK) -> TCPStore:
    """Returns a store that listens on a free port of one address of this machine, and no other."""
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
        timeout=_COLLECTIVE_TIMEOUT,
    )


def connect_to_store(host: str, port: int) -> TCPStore:
    """Returns a client of the store that rank 0 has started."""
    return TCPStore(
        host, port, is_master=False, wait_for_workers=False, timeout=_COLLECTIVE_TIMEOUT
    )


def init_worker_group(
    store: Store,
    *,
    rank: int,
    world_size: int,
    address: str,
    device: torch.device,
    check_alive: Callable[[], None] = assume_alive,
) -> WorkerGroup:
    """Initialises torch's process group once all ranks are there, and returns this rank's view.

    Args:
        store: the store of rank 0.
        rank: this process, from 0.
        world_size: number of ranks.
        address: address of this machine at which the other ranks reach it.
        device: where the trial trains; the backend is NCCL on GPUs and gloo elsewhere.
        check_alive: raises WorkerLost if another rank is known to be gone.
    """
    group = WorkerGroup(store, rank=rank, world_size=world_size, check_alive=check_alive)
    group.barrier("joined")
    interface = find_interface(address)
    os.environ.update(GLOO_SOCKET_IFNAME=interface, NCCL_SOCKET_IFNAME=interface)
    if device.type == "cuda":
        torch.cuda.set_device(device)
    distributed.init_process_group(
        "nccl" if device.type == "cuda" else "gloo",
        store=PrefixStore("group", store),
        rank=rank,
        world_size=world_size,
        timeout=_COLLECTIVE_TIMEOUT,
    )
    return group


def find_interface(address: str) -> str:
    """Returns the name of the network interface that has an address.

    Raises:
        ValueError: when no interface of this machine has it.
    """
    for name, addresses in psutil.net_if_addrs().items():
        if any(known.address == address for known in addresses):
            return name
    raise ValueError(
        f"the workers of a trial reach each other at the address of their Ray node, and no network "
        f"interface of this machine has {address}. Start the node with --node-ip-address."
    )


@contextmanager
def local_worker_group(config: TrialConfig, folder: Path) -> Iterator[WorkerGroup | None]:
    """Starts the other ranks of a trial and yields rank 0's view; None for trial.workers=1.

    Args:
        config: the trial's configuration.
        folder: where the trial trains.

    Raises:
        WorkerLost: when a rank died; the training can resume from its checkpoint.
    """
    if config.trial.workers == 1:
        yield None
        return

    device = choose_device(config.training.device)
    if device.type != "cpu":
        raise ValueError(
            f"trial.workers={config.trial.workers} outside of a study trains on CPUs, since no "
            f"scheduler assigns a GPU to each worker. Got training.device={device}. Run a study, "
            "set training.device to cpu, or set trial.workers to 1."
        )
    store = start_store()
    ranks = _start_ranks(config, folder, store.port)
    try:
        group = init_worker_group(
            store,
            rank=0,
            world_size=config.trial.workers,
            address=LOOPBACK,
            device=device,
            check_alive=lambda: _check_alive(ranks),
        )
        try:
            yield group
        finally:
            group.close()
        for process in ranks:
            process.join(_SECONDS_TO_EXIT)
    finally:
        for process in ranks:
            process.kill()
            process.join()


def _start_ranks(config: TrialConfig, folder: Path, port: int) -> list[SpawnProcess]:
    spawn = multiprocessing.get_context("spawn")
    ranks = [
        spawn.Process(
            target=_run_rank,
            args=(config.model_dump_json(), str(folder), rank, port),
            name=f"worker {rank} of {config.trial.workers}",
            daemon=True,
        )
        for rank in range(1, config.trial.workers)
    ]
    for process in ranks:
        process.start()
    return ranks


def _run_rank(config_text: str, folder: str, rank: int, port: int) -> None:
    """Trains as one rank above 0 until the training ends, or rank 0 is gone."""
    from dml_core.training.in_folder import train_other_rank
    from dml_core.trials.journal import Journal

    # Ctrl-C reaches all processes of a terminal; rank 0 decides.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    config = TrialConfig.model_validate_json(config_text)
    try:
        group = init_worker_group(
            connect_to_store(LOOPBACK, port),
            rank=rank,
            world_size=config.trial.workers,
            address=LOOPBACK,
            device=choose_device(config.training.device),
        )
        journal = Journal.in_folder(Path(folder))
        train_other_rank(config, open_development(config.data), journal, group=group)
        group.close()
    except WorkerLost:
        # Rank 0 reports the loss itself, if it still can.
        raise SystemExit(1) from None


def _check_alive(ranks: list[SpawnProcess]) -> None:
    for process in ranks:
        if process.exitcode is not None:
            raise WorkerLost(
                f"{process.name} ended with exit code {process.exitcode}. The same command resumes "
                "from the last checkpoint."
            )
