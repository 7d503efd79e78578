"""Chooses the characters of the embedded dataset: in every face, and none like another."""

import unicodedata
from functools import lru_cache
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFont

# Twelve faces of DejaVu and four of STIX, all carried by matplotlib.
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
    """Returns the file of one of the faces."""
    import matplotlib

    return Path(matplotlib.get_data_path()) / "fonts" / "ttf" / face


@lru_cache(maxsize=1)
def choose_characters() -> tuple[str, ...]:
    """Returns the characters, by code point: letters and digits that all faces have.

    Accented forms and look-alikes (A of three scripts) are left out: with them in, equal
    pictures carry different classes and nothing can be learned.
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
    """Returns the character's picture as a vector of zero mean and unit length."""
    font = ImageFont.truetype(str(face_path(FACES[0])), int(_PREVIEW_PX * 0.75))
    image = Image.new("L", (_PREVIEW_PX, _PREVIEW_PX))
    middle = (_PREVIEW_PX / 2, _PREVIEW_PX / 2)
    ImageDraw.Draw(image).text(middle, character, fill=255, font=font, anchor="mm")
    pixels = np.asarray(image, dtype=np.float64).ravel()
    pixels -= pixels.mean()
    return np.asarray(pixels / max(float(np.linalg.norm(pixels)), 1e-9))
