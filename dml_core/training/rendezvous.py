"""How the workers of a trial find each other: at a store that the leader opens."""

import os
import socket
from collections.abc import Callable
from datetime import timedelta

import psutil
import torch
from torch import distributed
from torch.distributed import PrefixStore, Store, TCPStore  # type: ignore[attr-defined]

from dml_core.training.team import Team, _ignore

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
