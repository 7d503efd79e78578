"""Renders the page of a study and the front page of all studies; names from data are escaped."""

import base64
import hashlib
import io
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any
from urllib.parse import quote

from jinja2 import Environment, PackageLoader, StrictUndefined
from PIL import Image

from dml_core.data.atomic_folder import folder_lock

CLAIM_MARKS = {"supported": "✓", "contradicted": "✗", "cannot tell": "?"}
_TYPES = {".png": "image/png", ".svg": "image/svg+xml", ".csv": "text/csv"}


@dataclass(frozen=True)
class Link:
    """A file embedded in the page for download."""

    file: str
    text: str
    address: str


@dataclass(frozen=True)
class Picture:
    """An image in the page."""

    name: str
    source: str
    """The image itself, as a data URL."""
    alt: str
    caption: str
    kind: str = "figure"
    """figure for drawings, pixels for images in their original size."""
    links: tuple[Link, ...] = ()
    narrow: str = ""
    """The same drawing for the screen of a phone, as a data URL; empty where there is none."""


def embed_figure(
    stem: Path, *, name: str, caption: str, alt: str = "", narrow: bytes = b""
) -> Picture:
    """Returns a drawing that was saved as SVG, PNG and CSV, with links to SVG and CSV.

    Args:
        stem: path of its files without a suffix.
        name: begins the names of downloaded files.
        caption: below it.
        alt: for readers who do not see it; the caption by default.
        narrow: the SVG of the same drawing for a phone.
    """
    found = [p for p in (stem.with_suffix(end) for end in (".csv", ".svg", ".png")) if p.exists()]
    # The page already contains the drawing as SVG.
    links = tuple(
        Link(f"{name}-{path.name}", path.suffix[1:].upper(), to_data_address(path))
        for path in found
        if path.suffix != ".png"
    )
    source = to_data_address(stem.with_suffix(".svg"))
    small = _encode(narrow, ".svg") if narrow else ""
    return Picture(stem.name, source, alt or caption, caption, links=links, narrow=small)


def embed_pixels(path: Path, *, caption: str, alt: str) -> Picture:
    """Returns an image of pixels."""
    return Picture(path.stem, to_data_address(path), alt, caption, kind="pixels")


def to_data_address(path: Path) -> str:
    """Returns a file as a data URL."""
    return _encode(path.read_bytes(), path.suffix)


def _encode(content: bytes, suffix: str) -> str:
    return f"data:{_TYPES[suffix]};base64,{base64.b64encode(content).decode()}"


def render(template: str, content: dict[str, Any]) -> str:
    """Returns a page with its style and script.

    A content security policy allows this one script only, so that a name from the
    data could not run code even if it were not escaped.
    """
    folder = Path(__file__).parent
    script = (folder / "sort.js").read_text(encoding="utf-8")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    environment = Environment(
        loader=PackageLoader("tasks", "report_page"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
    )
    environment.filters["sentence"] = _start_sentence
    return environment.get_template(template).render(
        **content,
        claim_marks=CLAIM_MARKS,
        script=script,
        script_hash=f"'sha256-{digest}'",
        style=(folder / "page.css").read_text(encoding="utf-8"),
    )


def _start_sentence(text: str) -> str:
    """Returns a text with a capital first letter, unless the first word is a dotted key."""
    return text if "." in text.partition(" ")[0] else text[:1].upper() + text[1:]


def write_page(
    target: Path,
    *,
    figures: Sequence[Picture],
    pictures: Sequence[Picture],
    content: dict[str, Any],
) -> None:
    """Writes a study's page as one self-contained HTML file."""
    page = render("page.html.jinja", {**content, "figures": figures, "pictures": pictures})
    target.write_text(page, encoding="utf-8")


SUMMARY_FILE = "summary.json"
_THUMBNAIL_PX = (480, 480)


def write_summary(folder: Path, summary: dict[str, Any]) -> None:
    """Writes the front page's summary of a report beside it."""
    text = json.dumps(summary, indent=2, ensure_ascii=False, sort_keys=True)
    (folder / SUMMARY_FILE).write_text(text + "\n", encoding="utf-8")


def write_front_page(root: Path) -> Path:
    """Writes index.html over all reports below a folder; its content depends on these alone.

    Reports that end at the same time write it in turn, so that the last one includes all.
    """
    target = root / "index.html"
    with folder_lock(root / "front-page"):
        entries = [_read_entry(path.parent) for path in sorted(root.glob(f"*/{SUMMARY_FILE}"))]
        counts = {
            verdict: sum(entry["claims"].get(verdict, 0) for entry in entries)
            for verdict in CLAIM_MARKS
        }
        content = {"entries": entries, "counts": counts, "total": sum(counts.values())}
        temporary = root / ".index.partial"
        temporary.write_text(render("front.html.jinja", content), encoding="utf-8")
        os.replace(temporary, target)
    return target


def _read_entry(folder: Path) -> dict[str, Any]:
    summary = json.loads((folder / SUMMARY_FILE).read_text(encoding="utf-8"))
    return {
        **summary,
        "claims": {verdict: summary["claims"].get(verdict, 0) for verdict in CLAIM_MARKS},
        "folder": folder.name,
        "link": f"{quote(folder.name)}/index.html",
        "thumbnail": _find_thumbnail(folder / "figures" / "figure.png"),
    }


def _find_thumbnail(path: Path) -> str:
    """Returns a small copy of a figure as a data URL; empty where there is none."""
    return _make_thumbnail(path, path.stat().st_mtime_ns) if path.is_file() else ""


# A run over all studies writes the front page after each of them.
@lru_cache(maxsize=256)
def _make_thumbnail(path: Path, changed_at: int) -> str:
    with Image.open(path) as picture:
        small = picture.convert("RGB")
        small.thumbnail(_THUMBNAIL_PX, Image.Resampling.LANCZOS)
    buffer = io.BytesIO()
    small.quantize(64).save(buffer, format="PNG", optimize=True)
    return f"data:image/png;base64,{base64.b64encode(buffer.getvalue()).decode()}"
