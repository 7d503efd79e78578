"""A disk that is full."""

import shutil
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from flows.drills.fault import DrillFailed, Fault
from flows.drills.scene import Scene

SIZE_MIB = 64
BALLAST = "drill-ballast"
REFUSED = 2


def _why_not() -> str:
    """Tries to mount a small disk of memory."""
    with tempfile.TemporaryDirectory(prefix="drill-") as name:
        if problem := _mount(Path(name)):
            return f"a small disk cannot be mounted here: {problem}"
        _unmount(Path(name))
    return ""


def _fill(scene: Scene) -> str:
    """Fills the disk with the results at the moment, and makes room again after the end."""
    results = scene.folder / "results"
    results.mkdir()
    if problem := _mount(results):
        raise DrillFailed(f"mount: {problem}")
    scene.cleanup.callback(_take_out, results)
    scene.sweep.start()
    scene.reach_moment()
    with _full(results):
        code = scene.sweep.wait_for_end()
        last = scene.sweep.printed.strip().splitlines()[-1:]
        if code != REFUSED or not "".join(last).startswith("dml: the disk that holds"):
            raise DrillFailed(f"it ended with {code}: {scene.sweep.last_words()}")
        scene.check_processes_gone()
    return scene.resume()


@contextmanager
def _full(folder: Path) -> Iterator[None]:
    """Takes all room of a disk for the block, also what others give back meanwhile."""
    is_over = threading.Event()
    filler = threading.Thread(target=_take_room, args=(folder / BALLAST, is_over))
    filler.start()
    try:
        yield
    finally:
        is_over.set()
        filler.join()
        (folder / BALLAST).unlink()


def _take_room(path: Path, is_over: threading.Event) -> None:
    size = 2**20
    with open(path, "ab", buffering=0) as file:
        while not is_over.is_set():
            try:
                file.write(bytes(size))
            except OSError:
                size = max(1, size // 2)
                if size == 1:
                    is_over.wait(0.01)


def _mount(folder: Path) -> str:
    """Mounts a disk of memory; returns what is wrong, nothing where it went well."""
    command = ["mount", "-t", "tmpfs", "-o", f"size={SIZE_MIB}m", "tmpfs", str(folder)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError as error:
        return str(error)
    return done.stderr.strip() or "it was refused" if done.returncode != 0 else ""


def _unmount(folder: Path) -> None:
    subprocess.run(["umount", str(folder)], check=True)


def _take_out(folder: Path) -> None:
    """Unmounts a disk and leaves its files in its place, for whoever looks into a failed drill."""
    copy = folder.with_name("drill-results")
    shutil.copytree(folder, copy)
    _unmount(folder)
    folder.rmdir()
    copy.rename(folder)


DISK_FULL = Fault("disk-full", "the disk with the results is full", _fill, why_not=_why_not)
