"""Fills the pages; names from data are escaped, and nothing is fetched from anywhere."""

import base64
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

CLAIM_MARKS = {"supported": "✓", "contradicted": "✗", "cannot tell": "?"}
_TYPES = {".png": "image/png", ".svg": "image/svg+xml", ".csv": "text/csv"}


@dataclass(frozen=True)
class Link:
    """A file that the page carries and gives away."""

    file: str
    text: str
    address: str


@dataclass(frozen=True)
class Picture:
    """An image in the page."""

    name: str
    source: str
    """The image itself, as a data address."""
    alt: str
    caption: str
    kind: str = "figure"
    """figure for drawings, pixels for pictures in their own size."""
    links: tuple[Link, ...] = ()


def embed_figure(stem: Path, *, name: str, caption: str, alt: str = "") -> Picture:
    """Returns a drawing that was saved as SVG, PNG and CSV, with all three to take away."""
    found = [p for p in (stem.with_suffix(end) for end in (".csv", ".svg", ".png")) if p.exists()]
    # The drawing is in the page already; as PNG it would be there twice.
    links = tuple(
        Link(f"{name}-{path.name}", path.suffix[1:].upper(), to_data_address(path))
        for path in found
        if path.suffix != ".png"
    )
    source = to_data_address(stem.with_suffix(".svg"))
    return Picture(stem.name, source, alt or caption, caption, links=links)


def embed_pixels(path: Path, *, caption: str, alt: str) -> Picture:
    """Returns a picture of pixels."""
    return Picture(path.stem, to_data_address(path), alt, caption, kind="pixels")


def to_data_address(path: Path) -> str:
    """Returns a file as an address that needs no network."""
    encoded = base64.b64encode(path.read_bytes()).decode()
    return f"data:{_TYPES[path.suffix]};base64,{encoded}"


def render(template: str, content: dict[str, Any]) -> str:
    """Returns a page with style and script in it.

    The browser is told to run that one script only, so that even a name which slipped through the
    escaping could not run anything.
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
    """Begins with a capital letter, unless the first word is a dotted key."""
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
