"""A damaged file of the packed data."""

import signal
from pathlib import Path

from flows.drills.fault import Fault
from flows.drills.faults.signals import hit_driver
from flows.drills.scene import Scene

IMAGES = Path("data") / "prepared" / "glyphs" / "development" / "images.bin"


def _damage_data(scene: Scene) -> str:
    """Flips a bit of the packed images, while the sweep reads them or while it is down."""
    if scene.chance.random() < 0.5:
        scene.sweep.start()
        scene.reach_moment()
        _flip_bit(scene)
        return _check_named(scene, scene.finish())
    hit_driver(scene, signal.SIGKILL, code=-signal.SIGKILL)
    _flip_bit(scene)
    return _check_named(scene, scene.resume())


def _check_named(scene: Scene, went_on: str) -> str:
    scene.check_said(f"{IMAGES} is damaged: its sha256 must be")
    scene.check_said("It was restored from DVC's cache.")
    return f"{went_on}, with the data from DVC's cache"


def _flip_bit(scene: Scene) -> None:
    path = scene.folder / IMAGES
    place = scene.chance.randrange(path.stat().st_size)
    # DVC may have taken the right to write.
    path.chmod(0o644)
    with open(path, "r+b") as file:
        file.seek(place)
        byte = file.read(1)[0]
        file.seek(place)
        file.write(bytes([byte ^ 1 << scene.chance.randrange(8)]))


DATA_DAMAGED = Fault(
    "data-damaged",
    "a bit of the packed images is flipped, while trials read them or while the sweep is down",
    _damage_data,
    latest=4,
    trials_at_once=1,
)
