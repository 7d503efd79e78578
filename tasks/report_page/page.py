"""Fills the report's page; names from data are escaped."""

import base64
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader


def write_page(target: Path, *, figure: Path, content: dict[str, Any]) -> None:
    """Writes one self-contained HTML file: the figure is embedded, nothing is fetched."""
    environment = Environment(loader=PackageLoader("tasks", "report_page"), autoescape=True)
    encoded = base64.b64encode(figure.read_bytes()).decode()
    page = environment.get_template("page.html.jinja").render(
        **content, figure=f"data:image/png;base64,{encoded}"
    )
    target.write_text(page, encoding="utf-8")
