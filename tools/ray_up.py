"""Starts a Ray cluster on two hosts over SSH with `ray up` and Ray's `local` provider.

    python -m tools.ray_up                        # as root; prints what happens
    python -m tools.ray_up --page docs/ray-up.md  # and writes it to a page

The hosts are namespaces of this machine with an SSH server each, whose keys and settings are in a
temporary folder. A third one runs `ray up`, `dml doctor` on the head, and `ray down`. Ends as
`tools.two_hosts` does.
"""

import argparse
import getpass
import hashlib
import os
import re
import secrets
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path

import yaml

from tools.hosts import Host, NoNamespaces, ProgramEnded, check_programs, wait_for_text
from tools.two_hosts_run import PROGRAMS, TREE, Say, shorten, write_files

HEAD, WORKER, LAPTOP = "10.78.0.1", "10.78.0.2", "10.78.0.3"
PATIENCE_SECONDS = 300.0
_SBIN = "/usr/sbin:/sbin"
"""Debian's SSH server is there, which is not on every user's PATH."""
_SHOWN = re.compile(
    r"added '|^Local node IP|runtime started|^nodes |^(ok|warning|broken) |broken, |^No nodes rem"
)
"""Lines of the commands that the log has; Ray prints far more."""
_TEXT = """\
# A cluster by `ray up` over SSH

`ray up` with Ray's `local` provider, over real SSH connections, on hosts that are namespaces of one
machine: a laptop that starts the cluster, its head and a worker. Each has its own address, home and
SSH server (Debian's, with keys of a temporary folder).

```
python -m tools.ray_up --page docs/ray-up.md
```

needs root, `ip`, `unshare`, `nsenter`, `sshd` and `rsync`; `tests/tools/test_ray_up.py` runs it
where they are installed. For your own machines, write their addresses into such a file.

- Ray 2.60's second autoscaler, the default of `ray up`, starts only the head of a `local` provider:
  it does not find the head in the provider's records, drops it, and never connects to a worker.
  Hence the two variables that choose the first autoscaler (`RAY_UP_enable_autoscaler_v2` for
  `ray up`, `RAY_enable_autoscaler_v2` for the head).
- `ray down` stops the head only. The worker's Ray ends by itself when it has missed its head for a
  while; see the end of the log.

The log, where `ROOT` is the temporary folder:

```
"""


class RayUp:
    """A laptop, a head and a worker with SSH servers."""

    def __init__(self, say: Say) -> None:
        self.root = Path(tempfile.mkdtemp(prefix="ru-"))
        self.say = say
        names = {"head": HEAD, "worker": WORKER, "laptop": LAPTOP}
        self.head, self.worker, self.laptop = self._hosts = [
            Host(name, address, folder=self.root / name, environment=self._environment(name))
            for name, address in names.items()
        ]

    def __enter__(self) -> "RayUp":
        try:
            self._make_files()
            for host in self._hosts:
                host.start()
            self.head.connect(self.worker, self.laptop)
            for host in self._hosts:
                # Ray keeps the sockets of its connections there.
                host.cover(_sockets_folder(), host.folder / "sockets")
                host.cover(Path("/run"), host.folder / "run")
                host.cover(Path("/etc/passwd"), host.folder / "passwd")
            for host in (self.head, self.worker):
                self._start_server(host)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for host in self._hosts:
            host.stop()
        shutil.rmtree(self.root, ignore_errors=True)
        with suppress(OSError):
            _sockets_folder().rmdir()

    def run(self) -> dict[str, bool]:
        """Starts, looks at and ends the cluster; returns which promises hold."""
        cluster = self.laptop.folder / "cluster.yaml"
        self.say("laptop$ cat cluster.yaml")
        for line in cluster.read_text(encoding="utf-8").splitlines():
            self.say(f"    {line}")
        self._run(["ray", "up", cluster.name, "--yes", "--no-config-cache"])
        nodes = self._wait_for_nodes(cluster.name)
        doctor = "cd ~/project && dml doctor tiny --only ray --set ray.address=auto --timeout 240"
        checked = self._run(["ray", "exec", cluster.name, doctor])
        self._run(["ray", "down", cluster.name, "--yes"])
        return {
            "ray up starts the head, and its autoscaler the worker, over SSH": nodes == 2,
            "dml doctor finds both nodes sound": "0 broken" in checked and WORKER in checked,
            "after ray down no Ray is left": self._wait_for_end(),
        }

    def _wait_for_nodes(self, cluster: str) -> int:
        """Returns the number of nodes once the worker has joined, or at the end of the patience."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        count = 'python -c \'import ray; ray.init("auto"); print("nodes", len(ray.nodes()))\''
        while True:
            said = self._run(["ray", "exec", cluster, count])
            found = int(said.rpartition("nodes ")[2].split()[0])
            if found > 1 or time.monotonic() > deadline:
                return found
            time.sleep(5)

    def _wait_for_end(self) -> bool:
        """Returns whether Ray ends on both hosts; the worker's waits for its head for a while."""
        started = time.monotonic()
        for host in (self.head, self.worker):
            while _runs_ray(host):
                if time.monotonic() - started > PATIENCE_SECONDS:
                    return False
                time.sleep(1)
            self.say(f"    {host.name}: no Ray {time.monotonic() - started:.0f} s after ray down")
        return True

    def _start_server(self, host: Host) -> None:
        folder = host.folder
        settings = {
            "ListenAddress": host.address,
            "HostKey": folder / "host_key",
            "AuthorizedKeysFile": folder / "authorized_keys",
            "PidFile": folder / "sshd.pid",
            "PermitRootLogin": "prohibit-password",
            "PasswordAuthentication": "no",
            "UsePAM": "no",
            # The temporary folder of all users is above them.
            "StrictModes": "no",
            "SetEnv": f"PATH={host.environment['PATH']}",
        }
        text = "".join(f"{name} {value}\n" for name, value in settings.items())
        (folder / "sshd_config").write_text(text, encoding="ascii")
        log = folder / "sshd.log"
        # An absolute path: the server starts itself again for each connection.
        command = [_find("sshd"), "-D", "-e", "-f", str(folder / "sshd_config")]
        wait_for_text(
            host.popen(command, log=log, folder=folder), log, "Server listening", PATIENCE_SECONDS
        )
        self.say(f"{host.name}: {host.address}, its SSH server listens")

    def _run(self, command: list[str]) -> str:
        """Runs a command on the laptop and returns what it printed."""
        self.say(f"laptop$ {shlex.join(command)}")
        log = self.laptop.folder / "command.log"
        program = [str(PROGRAMS / command[0]), *command[1:]]
        code = self.laptop.popen(program, log=log, folder=self.laptop.folder).wait(PATIENCE_SECONDS)
        said = log.read_text(encoding="utf-8", errors="replace")
        for line in map(str.strip, said.splitlines()):
            if _SHOWN.search(line.partition(" -- ")[2] or line):
                self.say(f"    {line}")
        if code:
            raise ProgramEnded(f"`{' '.join(command[:2])}` ended with {code}:\n{said[-3000:]}")
        return said

    def _make_files(self) -> None:
        token, key = secrets.token_hex(32), self.root / "laptop" / "key"
        for host in self._hosts:
            (host.folder / "home" / ".ray").mkdir(parents=True)
            (host.folder / "run" / "sshd").mkdir(parents=True, mode=0o755)
            (host.folder / "t").mkdir()
            (host.folder / "passwd").write_text(
                f"root:x:0:0:root:{host.folder / 'home'}:/bin/bash\n"
                "sshd:x:990:65534::/run/sshd:/usr/sbin/nologin\n",
                encoding="ascii",
            )
            # Bash reads it for each command of Ray and of rsync.
            exports = (f"export {k}={v!r}\n" for k, v in self._variables(host.name).items())
            (host.folder / "home" / ".bashrc").write_text("".join(exports), encoding="utf-8")
            _make_key(host.folder / "host_key")
        _sockets_folder().mkdir(mode=0o700, exist_ok=True)
        _make_key(key)
        public = key.with_suffix(".pub").read_text(encoding="ascii")
        for host in (self.head, self.worker):
            (host.folder / "authorized_keys").write_text(public, encoding="ascii")
        own = self.laptop.folder / "home" / ".ray" / "auth_token"
        own.touch(mode=0o600)
        own.write_text(token, encoding="ascii")
        self._write_cluster(key, own)
        write_files(self.head.folder / "home" / "project")

    def _write_cluster(self, key: Path, token: Path) -> None:
        start = "RAY_AUTH_MODE=token ray start --num-cpus=1 --disable-usage-stats"
        # The second autoscaler of Ray 2.60 never starts the workers of a local provider.
        head = f"RAY_enable_autoscaler_v2=0 {start} --head --port=6379"
        content = {
            "cluster_name": "dml",
            "provider": {"type": "local", "head_ip": HEAD, "worker_ips": [WORKER]},
            "auth": {"ssh_user": getpass.getuser(), "ssh_private_key": str(key)},
            "file_mounts": {"~/.ray/auth_token": str(token)},
            "head_start_ray_commands": [
                "ray stop",
                f"{head} --autoscaling-config=~/ray_bootstrap_config.yaml",
            ],
            "worker_start_ray_commands": ["ray stop", f"{start} --address=$RAY_HEAD_IP:6379"],
        }
        text = yaml.safe_dump(content, sort_keys=False, width=200)
        (self.laptop.folder / "cluster.yaml").write_text(text, encoding="utf-8")

    def _environment(self, name: str) -> dict[str, str]:
        kept = {key: os.environ[key] for key in ("LANG", "LD_LIBRARY_PATH") if key in os.environ}
        home = str(self.root / name / "home")
        return {**kept, "HOME": home, **self._variables(name)}

    def _variables(self, name: str) -> dict[str, str]:
        return {
            "PATH": f"{PROGRAMS}:{os.environ['PATH']}:{_SBIN}",
            "PYTHONPATH": str(TREE),
            "TMPDIR": str(self.root / name / "t"),
            "RAY_TMPDIR": str(self.root / name / "t"),
            "RAY_AUTH_MODE": "token",
            "RAY_UP_enable_autoscaler_v2": "0",
            "RAY_USAGE_STATS_ENABLED": "0",
            "OMP_NUM_THREADS": "1",
        }


def _runs_ray(host: Host) -> bool:
    log = host.folder / "processes.log"
    host.popen(["sh", "-c", "cat /proc/[0-9]*/comm"], log=log, folder=host.folder).wait(60)
    return any(name in log.read_text(encoding="utf-8") for name in ("raylet", "gcs_server"))


def _sockets_folder() -> Path:
    # As in ray.autoscaler._private.command_runner.
    user = hashlib.sha256(getpass.getuser().encode()).hexdigest()
    return Path("/tmp") / f"ray_ssh_{user[:10]}"  # noqa: S108


def _make_key(path: Path) -> None:
    command = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "", "-f", str(path)]
    subprocess.run(command, check=True)


def _find(name: str) -> str:
    found = shutil.which(name, path=f"{os.environ['PATH']}:{_SBIN}")
    if not found:
        raise NoNamespaces(f"{name} is missing. Run: apt-get install openssh-server rsync")
    return found


def check_ssh() -> None:
    """Raises NoNamespaces if this machine cannot have such hosts."""
    check_programs()
    for name in ("ssh", "ssh-keygen", "sshd", "rsync"):
        _find(name)


def main() -> int:
    """Starts and ends the cluster, and prints which promises hold."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--page", type=Path, help="page that gets the log")
    options = parser.parse_args()
    lines: list[str] = []

    def say(line: str = "") -> None:
        print(line, flush=True)
        lines.append(line)

    try:
        check_ssh()
        with RayUp(say) as hosts:
            findings, root = hosts.run(), hosts.root
    except NoNamespaces as error:
        print(f"ray_up: {error}", file=sys.stderr)
        return 2
    except ProgramEnded as error:
        print(f"ray_up: {error}", file=sys.stderr)
        return 1
    for name, is_good in findings.items():
        say(f"{'yes' if is_good else 'NO '}  {name}")
    if options.page and all(findings.values()):
        log = "\n".join(shorten(line, root) for line in lines)
        options.page.write_text(f"{_TEXT}{log}\n```\n", encoding="utf-8")
    return 0 if all(findings.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
