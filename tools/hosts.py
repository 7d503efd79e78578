"""A host within this machine: its own namespaces for network, processes, files and host name.

One process holds the namespaces of a host. When it ends, the kernel ends every process of the host
and removes its addresses and mounts, however the program that created the host ended.
"""

import contextlib
import ctypes
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import psutil

# The first process of a host inherits orphans; ignoring SIGCHLD lets the kernel reap them.
_HOLD = """
import signal
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
print("ready", flush=True)
while True:
    signal.pause()
"""
_NAMESPACES = ("--net", "--mount", "--pid", "--uts", "--ipc")
_PROGRAMS = {"ip": "iproute2", "unshare": "util-linux", "nsenter": "util-linux"}
_PR_SET_PDEATHSIG = 1
_SHARED_MEMORY = "/dev/shm"  # noqa: S108
_NO_DISKS = ("/dev", "/proc", "/sys")


class NoNamespaces(OSError):
    """This machine cannot create namespaces; the message says what is missing."""


class ProgramEnded(RuntimeError):
    """A program on a host ended early or did not start; the message has the end of its log."""


class Host:
    """A host name, an address, and its own files."""

    def __init__(
        self, name: str, address: str, *, folder: Path, environment: Mapping[str, str]
    ) -> None:
        """Prepares a host; `start` creates it.

        Args:
            name: host name.
            address: IP address of its only network interface.
            folder: folder of its own files.
            environment: environment variables of all its processes.
        """
        self.name = name
        self.address = address
        self.folder = folder
        self.environment = dict(environment)
        self._holder: subprocess.Popen[str] | None = None
        self._first = 0

    def start(self) -> "Host":
        """Creates the namespaces, with loopback up and its own shared memory."""
        unshare = ["unshare", *_NAMESPACES, "--fork", "--kill-child", "--mount-proc"]
        self._holder = subprocess.Popen(
            [*unshare, sys.executable, "-c", _HOLD],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
            preexec_fn=_die_with_parent,
        )
        if self._holder.stdout is None or self._holder.stdout.readline() != "ready\n":
            raise NoNamespaces(_explain(self._holder.communicate()[1]))
        (first,) = psutil.Process(self._holder.pid).children()
        self._first = first.pid
        self.run(["hostname", self.name])
        self.run(["mount", "-t", "tmpfs", "tmpfs", _SHARED_MEMORY])
        self.run(["ip", "link", "set", "lo", "up"])
        self._write_names([self])
        return self

    def connect(self, *others: "Host") -> None:
        """Connects other hosts to this one, which is their switch too, by virtual interfaces."""
        self.run(["ip", "link", "add", "eth0", "type", "bridge"])
        for number, other in enumerate(others):
            end = f"port{number}"
            ends = [end, "netns", str(self._first)], ["eth0", "netns", str(other._first)]
            _check(["ip", "link", "add", *ends[0], "type", "veth", "peer", "name", *ends[1]])
            self.run(["ip", "link", "set", end, "master", "eth0", "up"])
        for host in (self, *others):
            host.run(["ip", "address", "add", f"{host.address}/24", "dev", "eth0"])
            host.run(["ip", "link", "set", "eth0", "up"])
            # Programs look up the default route to find their own address.
            host.run(["ip", "route", "add", "default", "dev", "eth0"])
            host._write_names([self, *others])

    def seal(self, path: Path) -> None:
        """Mounts the host's own folder at a path, and makes every other disk read-only for it.

        So hosts see the same programs, as from one image, and cannot exchange anything by files.
        """
        self.run(["mount", "--bind", str(self.folder), str(path)])
        for disk in psutil.disk_partitions(all=True):
            if not disk.mountpoint.startswith(_NO_DISKS):
                self.run(["mount", "-o", "remount,bind,ro", disk.mountpoint])

    def cover(self, path: Path, own: Path) -> None:
        """Mounts a file or folder of the host's own over one of this machine."""
        if path.is_dir():
            own.mkdir(parents=True, exist_ok=True)
        self.run(["mount", "--bind", str(own), str(path)])

    def run(self, command: Sequence[str]) -> None:
        """Runs a command on the host, which must end with 0."""
        _check(self._enter(command))

    def popen(
        self,
        command: Sequence[str],
        *,
        log: Path,
        folder: Path,
        environment: Mapping[str, str] | None = None,
    ) -> subprocess.Popen[bytes]:
        """Starts a program on the host.

        Args:
            command: program and arguments.
            log: file for its output, as this process sees it.
            folder: working folder, as the host sees it.
            environment: further environment variables.
        """
        inside = ["sh", "-c", 'cd "$0" && exec "$@"', str(folder), *command]
        with log.open("wb") as file:
            return subprocess.Popen(
                self._enter(inside),
                env={**self.environment, **(environment or {})},
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def stop(self) -> None:
        """Kills every process on the host, and waits for the end of its first process."""
        if self._holder is None:
            return
        processes = [psutil.Process(self._first)] if psutil.pid_exists(self._first) else []
        self._holder.kill()
        self._holder.communicate()
        psutil.wait_procs(processes, timeout=30)
        self._holder = None

    def _write_names(self, hosts: Sequence["Host"]) -> None:
        """Mounts an /etc/hosts with these hosts, and a resolver that answers nothing else."""
        self.folder.mkdir(parents=True, exist_ok=True)
        names = "".join(f"{host.address} {host.name}\n" for host in hosts)
        for path, text in (
            ("/etc/hosts", f"127.0.0.1 localhost\n{names}"),
            ("/etc/resolv.conf", "nameserver 127.0.0.1\n"),
        ):
            own = self.folder / Path(path).name
            own.write_text(text, encoding="ascii")
            self.run(["mount", "--bind", str(own), path])

    def _enter(self, command: Sequence[str]) -> list[str]:
        return ["nsenter", "--target", str(self._first), *_NAMESPACES, *command]


def check_programs() -> None:
    """Raises NoNamespaces if a required program or right is missing."""
    missing = sorted({package for name, package in _PROGRAMS.items() if not shutil.which(name)})
    if missing:
        raise NoNamespaces(f"missing programs. Run: apt-get install {' '.join(missing)}")
    if os.geteuid() != 0:
        raise NoNamespaces(_explain(f"the user is {os.geteuid()}, not root"))
    _check(["unshare", *_NAMESPACES, "--fork", "true"])


def wait_for_text(process: subprocess.Popen[bytes], log: Path, text: str, seconds: float) -> None:
    """Waits until a program has printed a text; raises ProgramEnded with its log otherwise."""
    deadline = time.monotonic() + seconds
    while text not in (said := log.read_text(errors="replace")):
        if process.poll() is not None or time.monotonic() > deadline:
            raise ProgramEnded(
                f"{log.name} of {log.parent.name} never printed {text!r}:\n{said[-3000:]}"
            )
        time.sleep(0.1)


def _check(command: Sequence[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise NoNamespaces(_explain(f"`{' '.join(command)}`: {done.stderr.strip()}"))


def _explain(reason: str) -> str:
    return (
        f"namespaces cannot be created here: {reason.strip()}. Run it as root on a Linux "
        "machine, or in a container with --privileged."
    )


def _die_with_parent() -> None:
    """Makes the kernel kill the holder when this program dies, even by SIGKILL."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
