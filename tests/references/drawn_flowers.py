"""Colour pictures of flowers, drawn instead of downloaded, of mixed sizes and rotations."""

import math
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw

COLORS = (
    *((214, 69, 80), (240, 140, 60), (244, 196, 48), (118, 176, 65)),
    *((60, 160, 170), (70, 110, 200), (140, 90, 190), (220, 110, 170)),
)
ORIENTATION = 0x0112


def draw_flower(label: int, number: int, *, size_px: int = 160) -> Image.Image:
    """Returns the picture of a flower: colour and petals are its class's, the rest varies."""
    stream = np.random.default_rng([label, number])
    # Drawn at twice the size: smooth edges.
    side = 2 * size_px
    ground = stream.integers(200, 246, 3)
    picture = Image.new("RGB", (side, side), tuple(int(value) for value in ground))
    pen = ImageDraw.Draw(picture)
    color = np.array(COLORS[label % len(COLORS)])
    petals = 5 if label < len(COLORS) else 9
    center = side * (0.5 + stream.uniform(-0.06, 0.06, 2))
    reach = side * stream.uniform(0.3, 0.42)
    turn = stream.uniform(0, 2 * math.pi)
    pen.line(
        [tuple(center), (center[0] + stream.uniform(-40, 40), side)], (70, 130, 70), side // 40
    )
    for petal in range(petals):
        angle = turn + 2 * math.pi * petal / petals
        middle = center + 0.58 * reach * np.array([math.cos(angle), math.sin(angle)])
        width = reach * (0.42 if petals == 5 else 0.3)
        shade = np.clip(color + stream.integers(-18, 19, 3), 0, 255)
        box = [*(middle - width), *(middle + width)]
        pen.ellipse(box, tuple(int(value) for value in shade), (60, 50, 50), 2)
    heart = 0.3 * reach
    pen.ellipse([*(center - heart), *(center + heart)], (250, 220, 90), (90, 70, 40), 2)
    return picture.resize((size_px, size_px), Image.Resampling.LANCZOS)


def write_flowers(
    root: Path,
    *,
    num_classes: int = 16,
    num_images: int = 8,
    sizes_px: tuple[int, ...] = (96, 128, 160),
) -> None:
    """Writes JPEG files `flower-00/0.jpg` of several sizes; some are stored turned."""
    for label in range(num_classes):
        for number in range(num_images):
            path = root / f"flower-{label:02d}" / f"{number}.jpg"
            path.parent.mkdir(parents=True, exist_ok=True)
            picture = draw_flower(label, number, size_px=sizes_px[number % len(sizes_px)])
            exif = Image.Exif()
            if number % 4 == 3:
                # Turned by a quarter, and marked so: it is upright again when it is read.
                picture = picture.transpose(Image.Transpose.ROTATE_90)
                exif[ORIENTATION] = 6
            picture.save(path, exif=exif, quality=90)
