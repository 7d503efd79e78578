"""Damaged checkpoints."""

import signal
from collections.abc import Callable
from pathlib import Path

from dml_core.training.checkpoint import DamagedCheckpoint, load_checkpoint
from flows.drills.fault import DrillFailed, Fault
from flows.drills.faults.signals import hit_driver
from flows.drills.scene import Scene

Damage = Callable[[Scene, bytes], bytes]
MAX_TRIES = 50


def _resume_with(damage: Damage, scene: Scene) -> str:
    """Kills the driver, damages the newest checkpoint of a trial that ran, and resumes."""
    hit_driver(scene, signal.SIGKILL, code=-signal.SIGKILL)
    path = _choose_checkpoint(scene)
    _damage(scene, path, damage)
    went_on = scene.resume()
    scene.check_said(path.name)
    scene.check_said("The one before it is used.")
    return f"{went_on}, from the checkpoint before"


def _choose_checkpoint(scene: Scene) -> Path:
    trials = scene.sweep.working_folder / "trials"
    held = {trial: sorted(trials.glob(f"{trial}/checkpoints/epoch_*.pt")) for trial in scene.hit}
    # A trial may have ended between the look and the kill.
    usable = [
        trial
        for trial, paths in held.items()
        if len(paths) > 1 and not (trials / trial / "result.json").exists()
    ]
    if not usable:
        raise DrillFailed("no trial that ran has two checkpoints")
    return held[scene.chance.choice(usable)][-1]


def _damage(scene: Scene, path: Path, damage: Damage) -> None:
    """Damages a file until it counts: some bytes of it, such as dates, mean nothing."""
    whole = path.read_bytes()
    for _ in range(MAX_TRIES):
        path.write_bytes(damage(scene, whole))
        try:
            load_checkpoint(path)
        except DamagedCheckpoint:
            return
    raise DrillFailed(f"{MAX_TRIES} times damaged, {path} is still taken for whole")


def _truncate(scene: Scene, content: bytes) -> bytes:
    return content[: scene.chance.randrange(len(content))]


def _flip_bit(scene: Scene, content: bytes) -> bytes:
    place, bit = scene.chance.randrange(len(content)), scene.chance.randrange(8)
    changed = bytearray(content)
    changed[place] ^= 1 << bit
    return bytes(changed)


CHECKPOINT_TRUNCATED = Fault(
    "checkpoint-truncated",
    "kill -9 of the command, and the newest checkpoint of a trial is cut short",
    lambda scene: _resume_with(_truncate, scene),
    trials_at_once=1,
)
CHECKPOINT_BIT_FLIPPED = Fault(
    "checkpoint-bit-flipped",
    "kill -9 of the command, and a bit of the newest checkpoint of a trial is flipped",
    lambda scene: _resume_with(_flip_bit, scene),
    trials_at_once=1,
)
