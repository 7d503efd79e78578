"""The page over all studies that have a report."""

import base64
import io
import json
import os
from pathlib import Path
from typing import Any
from urllib.parse import quote

from PIL import Image

from dml_core.data.atomic_folder import folder_lock
from tasks.report_page.page import CLAIM_MARKS, render

SUMMARY_FILE = "summary.json"
_THUMBNAIL_PX = (480, 480)


def write_summary(folder: Path, summary: dict[str, Any]) -> None:
    """Writes what the front page tells of a report beside it."""
    text = json.dumps(summary, indent=2, ensure_ascii=False, sort_keys=True)
    (folder / SUMMARY_FILE).write_text(text + "\n", encoding="utf-8")


def write_front_page(root: Path) -> Path:
    """Writes index.html over all reports below a folder, the same whoever writes it and when.

    Reports that end at the same time write it one after the other, so the last one sees all.
    """
    target = root / "index.html"
    with folder_lock(root / "front-page"):
        entries = [_read_entry(path.parent) for path in sorted(root.glob(f"*/{SUMMARY_FILE}"))]
        counts = {
            verdict: sum(entry["claims"].get(verdict, 0) for entry in entries)
            for verdict in CLAIM_MARKS
        }
        content = {"entries": entries, "counts": counts, "total": sum(counts.values())}
        temporary = root / f".index.{os.getpid()}.partial"
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
        "thumbnail": _make_thumbnail(folder / "figures" / "figure.png"),
    }


def _make_thumbnail(path: Path) -> str:
    """Returns a small copy of a figure as a data address; empty where there is none."""
    if not path.is_file():
        return ""
    with Image.open(path) as picture:
        small = picture.convert("RGB")
        small.thumbnail(_THUMBNAIL_PX, Image.Resampling.LANCZOS)
    buffer = io.BytesIO()
    small.quantize(64).save(buffer, format="PNG", optimize=True)
    return f"data:image/png;base64,{base64.b64encode(buffer.getvalue()).decode()}"
