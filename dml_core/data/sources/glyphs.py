"""Draws the embedded dataset: characters in many fonts, transformed, with clutter and noise."""

import unicodedata
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from dml_core.config.data import GlyphsData
from dml_core.data.records import ImageRecord, SourceListing
from dml_core.seeding import numpy_stream

# Twelve faces of DejaVu and four of STIX, which matplotlib ships.
_STYLES = {
    "DejaVuSans": ("", "-Bold", "-Oblique", "-BoldOblique"),
    "DejaVuSansMono": ("", "-Bold", "-Oblique", "-BoldOblique"),
    "DejaVuSerif": ("", "-Bold", "-Italic", "-BoldItalic"),
    "STIXGeneral": ("", "Bol", "Italic", "BolIta"),
}
FACES = tuple(f"{family}{style}.ttf" for family, styles in _STYLES.items() for style in styles)
_LETTERS_AND_DIGITS = ("Lu", "Ll", "Lo", "Nd")
_LOOK_ALIKE_CORRELATION = 0.97
_PREVIEW_PX = 32


def face_path(face: str) -> Path:
    """Returns the font file of a face."""
    import matplotlib

    return Path(matplotlib.get_data_path()) / "fonts" / "ttf" / face


@lru_cache(maxsize=1)
def choose_characters() -> tuple[str, ...]:
    """Returns the letters and digits that all faces have, by code point.

    Accented forms and look-alikes (A in three scripts) are excluded: they would give equal
    pictures in different classes, which cannot be learned.
    """
    chosen: list[str] = []
    previews = np.empty((0, _PREVIEW_PX * _PREVIEW_PX))
    for character in _common_characters():
        preview = _preview(character)
        if len(previews) and (previews @ preview).max() > _LOOK_ALIKE_CORRELATION:
            continue
        chosen.append(character)
        previews = np.vstack([previews, preview])
    return tuple(chosen)


def _common_characters() -> list[str]:
    from matplotlib.ft2font import FT2Font

    common: set[int] | None = None
    for face in FACES:
        points = set(FT2Font(str(face_path(face))).get_charmap())
        common = points if common is None else common & points
    characters = (chr(point) for point in sorted(common or ()))
    return [c for c in characters if _is_plain_letter_or_digit(c)]


def _is_plain_letter_or_digit(character: str) -> bool:
    if unicodedata.category(character) not in _LETTERS_AND_DIGITS:
        return False
    return len(unicodedata.normalize("NFKD", character)) == 1 and character.isprintable()


def _preview(character: str) -> np.ndarray:
    """Returns the picture of a character as a vector of zero mean and unit length."""
    font = ImageFont.truetype(str(face_path(FACES[0])), int(_PREVIEW_PX * 0.75))
    image = Image.new("L", (_PREVIEW_PX, _PREVIEW_PX))
    middle = (_PREVIEW_PX / 2, _PREVIEW_PX / 2)
    ImageDraw.Draw(image).text(middle, character, fill=255, font=font, anchor="mm")
    pixels = np.asarray(image, dtype=np.float64).ravel()
    pixels -= pixels.mean()
    return np.asarray(pixels / max(float(np.linalg.norm(pixels)), 1e-9))


# Drawn at four times the size and averaged down, for smooth edges at any angle.
_OVERSAMPLING = 4
# Font size as a share of the picture's side; leaves room for rotation.
_FONT_SHARE = 0.68


@dataclass(frozen=True)
class _Pose:
    """Rotation, scale and shear are the continuous labels of a drawing."""

    rotation: float
    scale: float
    shear: float
    shift: tuple[float, float]


def list_glyphs(config: GlyphsData) -> SourceListing:
    """Returns all drawings of the embedded dataset; equal configurations give equal drawings."""
    characters = choose_characters()
    if config.max_classes:
        characters = characters[: config.max_classes]
    records = [
        record for character in characters for record in _draw_class(character, config=config)
    ]
    return SourceListing(records=records, root=None)


def _draw_class(character: str, *, config: GlyphsData) -> list[ImageRecord]:
    # One stream per character: excluding one does not change the others.
    name = f"U+{ord(character):04X}"
    stream = numpy_stream(config.draw_seed, f"glyph {name}")
    records = []
    for number in range(config.images_per_class):
        pose = _draw_pose(stream, config=config)
        records.append(
            ImageRecord(
                path=f"{name}/{number:04d}",
                class_name=f"{name} {character}",
                role="undecided",
                pixels=_draw_image(character, pose, stream, config=config),
                continuous={
                    "rotation": pose.rotation,
                    "scale": pose.scale,
                    "shear": pose.shear,
                },
            )
        )
    return records


def _draw_pose(stream: np.random.Generator, *, config: GlyphsData) -> _Pose:
    rotation, scale, shear, right, down = stream.uniform(-1, 1, size=5)
    return _Pose(
        rotation=float(rotation * config.rotation_degrees),
        scale=float(1 + scale * config.scale_range),
        shear=float(shear * config.shear_range),
        shift=(float(right * config.shift_px), float(down * config.shift_px)),
    )


def _draw_image(
    character: str, pose: _Pose, stream: np.random.Generator, *, config: GlyphsData
) -> np.ndarray:
    side = config.image_size_px * _OVERSAMPLING
    ink = _draw_character(character, stream, side=side, stroke=config.stroke_px)
    moved = ink.transform(
        (side, side),
        Image.Transform.AFFINE,
        _inverse_affine(pose, side=side),
        resample=Image.Resampling.BILINEAR,
    )
    clutter = _draw_clutter(stream, side=side, count=config.clutter)
    small = (layer.reduce(_OVERSAMPLING) for layer in (moved, clutter))
    letter, lines = (np.asarray(layer, dtype=np.float64) / 255 for layer in small)
    contrast = stream.uniform(0.6, 1.0)
    noise = stream.normal(0, config.noise, size=letter.shape)
    picture = np.maximum(letter * contrast, lines * 0.5) + noise
    return np.clip(np.rint(picture * 255), 0, 255).astype(np.uint8)


def _draw_character(
    character: str, stream: np.random.Generator, *, side: int, stroke: float
) -> Image.Image:
    face = FACES[int(stream.integers(len(FACES)))]
    width = int(stream.integers(round(stroke * _OVERSAMPLING) + 1)) // 2
    image = Image.new("L", (side, side))
    font = _font(face, int(side * _FONT_SHARE))
    middle = (side / 2, side / 2)
    pen = ImageDraw.Draw(image)
    pen.text(middle, character, fill=255, font=font, anchor="mm", stroke_width=width)
    return image


@lru_cache(maxsize=64)
def _font(face: str, size: int) -> ImageFont.FreeTypeFont:
    return ImageFont.truetype(str(face_path(face)), size)


def _inverse_affine(pose: _Pose, *, side: int) -> tuple[float, ...]:
    """Returns Pillow's six numbers, which map a point of the result to a point of the source."""
    angle = np.deg2rad(pose.rotation)
    turn = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
    forward = pose.scale * turn @ np.array([[1.0, pose.shear], [0.0, 1.0]])
    inverse = np.linalg.inv(forward)
    center = np.array([side / 2, side / 2])
    shift = np.array(pose.shift) * _OVERSAMPLING
    offset = center - inverse @ (center + shift)
    rows = np.column_stack([inverse, offset])
    return tuple(float(value) for value in rows.ravel())


def _draw_clutter(stream: np.random.Generator, *, side: int, count: int) -> Image.Image:
    image = Image.new("L", (side, side))
    pen = ImageDraw.Draw(image)
    ends = stream.uniform(0, side, size=(count, 2, 2))
    # Short lines: each ends at a third of the way to its second point.
    ends[:, 1] = ends[:, 0] + (ends[:, 1] - ends[:, 0]) / 3
    for start, end in ends:
        pen.line([*start, *end], fill=255, width=_OVERSAMPLING)
    return image
