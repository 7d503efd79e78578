"""Faults of the disk: damaged checkpoints, damaged data, no room."""

import shutil
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from dml_core.training.checkpoint import DamagedCheckpoint, load_checkpoint
from tests.drills.faults.commands import REFUSED, kill_driver
from tests.drills.messages import (
    CHECKPOINT_BEFORE,
    DATA_DAMAGED_MESSAGE,
    DATA_RESTORED,
    DISK_FULL_MESSAGE,
)
from tests.drills.plan import DrillFailed, Fault
from tests.drills.scene import Scene

Damage = Callable[[Scene, bytes], bytes]
MAX_DAMAGES = 50
IMAGES = Path("data") / "prepared" / "glyphs" / "development" / "images.bin"
DISK_MIB = 64
BALLAST = "drill-ballast"


def _damage_checkpoint(damage: Damage, scene: Scene) -> str:
    """Kills the driver, damages the newest checkpoint of a trial that ran, and resumes."""
    kill_driver(scene)
    path = _choose_checkpoint(scene)
    _damage(scene, path, damage)
    recovery = scene.resume()
    scene.check_printed(path.name)
    scene.check_printed(CHECKPOINT_BEFORE)
    return f"{recovery}, from the checkpoint before"


def _choose_checkpoint(scene: Scene) -> Path:
    journals = scene.sweep.journals()
    held = {trial: sorted(journals[trial].glob("checkpoints/epoch_*.pt")) for trial in scene.hit}
    # A trial may have ended between the last poll and the kill.
    usable = [
        trial
        for trial, paths in held.items()
        if len(paths) > 1 and not (journals[trial] / "result.json").exists()
    ]
    if not usable:
        raise DrillFailed("no trial that ran has two checkpoints")
    return held[scene.choices.choice(usable)][-1]


def _damage(scene: Scene, path: Path, damage: Damage) -> None:
    """Damages a checkpoint until it is detected: some of its bytes, such as dates, do not count."""
    whole = path.read_bytes()
    for _ in range(MAX_DAMAGES):
        path.write_bytes(damage(scene, whole))
        try:
            load_checkpoint(path)
        except DamagedCheckpoint:
            return
    raise DrillFailed(f"{path} was damaged {MAX_DAMAGES} times and still loads")


def _truncate(scene: Scene, content: bytes) -> bytes:
    return content[: scene.choices.randrange(len(content))]


def _flip_bit(scene: Scene, content: bytes) -> bytes:
    place, bit = scene.choices.randrange(len(content)), scene.choices.randrange(8)
    changed = bytearray(content)
    changed[place] ^= 1 << bit
    return bytes(changed)


def _damage_data(scene: Scene) -> str:
    """Flips a bit of the packed images, while trials read them or while the sweep is down."""
    if scene.choices.random() < 0.5:
        scene.sweep.start()
        scene.reach_moment()
        _flip_image_bit(scene)
        recovery = scene.finish()
    else:
        kill_driver(scene)
        _flip_image_bit(scene)
        recovery = scene.resume()
    scene.check_printed(f"{IMAGES}{DATA_DAMAGED_MESSAGE}")
    scene.check_printed(f"{DATA_RESTORED}DVC's cache.")
    return f"{recovery}, with the data from DVC's cache"


def _flip_image_bit(scene: Scene) -> None:
    path = scene.folder / IMAGES
    place = scene.choices.randrange(path.stat().st_size)
    # DVC may have made the file read-only.
    path.chmod(0o644)
    with open(path, "r+b") as file:
        file.seek(place)
        byte = file.read(1)[0]
        file.seek(place)
        file.write(bytes([byte ^ 1 << scene.choices.randrange(8)]))


def _fill_disk(scene: Scene) -> str:
    """Fills the disk of the results at the moment, and frees it after the command has ended."""
    results = scene.folder / "results"
    results.mkdir()
    if problem := _mount(results):
        raise DrillFailed(f"mount: {problem}")
    scene.cleanup.callback(_replace_disk, results)
    scene.sweep.start()
    scene.reach_moment()
    with _full(results):
        code = scene.sweep.wait_for_end()
        last = scene.sweep.printed.strip().splitlines()[-1:]
        if code != REFUSED or not "".join(last).startswith(f"dml: {DISK_FULL_MESSAGE}"):
            raise DrillFailed(f"the command ended with {code}: {scene.sweep.last_words()}")
        scene.check_processes_gone()
    return scene.resume()


def _why_no_disk() -> str:
    """Returns why no tmpfs can be mounted; empty where it can."""
    with tempfile.TemporaryDirectory(prefix="drill-") as name:
        if problem := _mount(Path(name)):
            return f"a small disk cannot be mounted here: {problem}"
        _unmount(Path(name))
    return ""


@contextmanager
def _full(folder: Path) -> Iterator[None]:
    """Keeps a disk full within the block, also when other processes free space."""
    is_over = threading.Event()
    filler = threading.Thread(target=_fill, args=(folder / BALLAST, is_over))
    filler.start()
    try:
        yield
    finally:
        is_over.set()
        filler.join()
        (folder / BALLAST).unlink()


def _fill(path: Path, is_over: threading.Event) -> None:
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
    """Mounts a tmpfs; returns the error, empty on success."""
    command = ["mount", "-t", "tmpfs", "-o", f"size={DISK_MIB}m", "tmpfs", str(folder)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError as error:
        return str(error)
    return done.stderr.strip() or "it was refused" if done.returncode != 0 else ""


def _unmount(folder: Path) -> None:
    subprocess.run(["umount", str(folder)], check=True)


def _replace_disk(folder: Path) -> None:
    """Unmounts a disk and leaves its files in its place, for the analysis of a failed drill."""
    copy = folder.with_name("drill-results")
    shutil.copytree(folder, copy)
    _unmount(folder)
    folder.rmdir()
    copy.rename(folder)


CHECKPOINT_TRUNCATED = Fault(
    "checkpoint-truncated",
    "kill -9 of the command, and the newest checkpoint of a trial is truncated",
    lambda scene: _damage_checkpoint(_truncate, scene),
    trials_at_once=1,
)
CHECKPOINT_BIT_FLIPPED = Fault(
    "checkpoint-bit-flipped",
    "kill -9 of the command, and a bit of the newest checkpoint of a trial is flipped",
    lambda scene: _damage_checkpoint(_flip_bit, scene),
    trials_at_once=1,
)
DATA_DAMAGED = Fault(
    "data-damaged",
    "a bit of the packed images is flipped, while trials read them or while the sweep is down",
    _damage_data,
    latest=4,
    trials_at_once=1,
)
DISK_FULL = Fault(
    "disk-full", "the disk with the results is full", _fill_disk, why_not=_why_no_disk
)
