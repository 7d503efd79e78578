"""Writes the results of a search as one self-contained page."""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from dml_core.retrieval.folder_index import FolderIndex, Neighbor
from dml_core.retrieval.thumbnails import thumbnail_of_file, to_data_address

FOLDER = Path(__file__).parent


@dataclass(frozen=True)
class Shown:
    """A picture of the page."""

    name: str
    source: str
    """A data URL; empty where the file is gone."""
    score: str = ""


def write_search_page(
    target: Path,
    *,
    title: str,
    queries: Sequence[Path],
    found: Sequence[Sequence[Neighbor]],
    index: FolderIndex,
    show_score: Callable[[float], str],
) -> None:
    """Writes a page with the queries and their nearest images; names are escaped.

    Args:
        target: the HTML file, which is replaced atomically.
        title: name of the study.
        queries: the pictures that were searched for.
        found: the nearest images of each.
        index: the searched index.
        show_score: puts a score into words.
    """
    searches = [
        {
            "query": _show(path, path.name),
            "neighbors": [
                _show(index.file(each.position), each.path, show_score(each.score))
                for each in neighbors
            ],
        }
        for path, neighbors in zip(queries, found, strict=True)
    ]
    page = render(
        "results.html.jinja",
        title=title,
        root=_name(str(index.root)),
        searches=searches,
        num_images=len(index),
        style=read_asset("search.css"),
    )
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = target.with_name(f".{target.name}.{os.getpid()}.partial")
    temporary.write_text(page, encoding="utf-8")
    os.replace(temporary, target)


def render(template: str, **content: Any) -> str:
    """Returns a page; every text is escaped."""
    environment = Environment(
        loader=FileSystemLoader(FOLDER),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
    )
    return environment.get_template(template).render(**content)


def read_asset(name: str) -> str:
    """Returns a style or a script of the pages."""
    return (FOLDER / name).read_text(encoding="utf-8")


def _show(path: Path, name: str, score: str = "") -> Shown:
    return Shown(_name(name), to_data_address(thumbnail_of_file(path)), score)


def _name(text: str) -> str:
    # A name with bytes that are not UTF-8 could not be written.
    return text.encode("utf-8", "replace").decode("utf-8")
