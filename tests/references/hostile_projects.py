"""A tiny project in which every text that people choose tries to run a script in a browser."""

import csv
import json
from pathlib import Path

from PIL import Image

from dml_core.config.data import FolderData
from dml_core.config.loading import load_params, unflatten
from tests.references.drawn_datasets import draw_pixels
from tests.references.tiny_projects import make_project

IMAGES_PER_CLASS = 8
FOLDER_NAME = "<img src=x onerror=window.hacked=1>"
"""A file's name has no slash, so that it cannot hold an address."""


def make_hostile_texts(sentinel: str) -> dict[str, str]:
    """Returns attacks by name; each requests a file of this name or sets a variable.

    Args:
        sentinel: address of a server that no page may send a request to.
    """
    ran = "window.hacked=1"
    return {
        "script": f"<script src={sentinel}/script.js></script><script>{ran}</script>",
        "image": f"<img src={sentinel}/image.png onerror={ran}>",
        "svg": f"<svg onload={ran}><image href={sentinel}/svg.png /></svg>",
        "frame": f"<iframe src={sentinel}/frame.html></iframe>",
        "picture": f"![seen]({sentinel}/picture.png)",
        "link": f"[click](javascript:{ran})",
        "style": f"<style>@import '{sentinel}/style.css';</style>",
        "table": f"| a |\n| --- |\n| ![seen]({sentinel}/table.png) |",
    }


def make_hostile_project(folder: Path, sentinel: str) -> Path:
    """Makes a project with a study `hostile`, whose texts, names and data are attacks."""
    texts = make_hostile_texts(sentinel)
    study = {
        "question": make_question(sentinel),
        "source": texts["image"],
        "arms": {"anchor": {"loss.name": "proxy_anchor"}, "triplet": {"loss.name": "triplet"}},
        "seeds": [0],
        "claims": [{"text": texts["script"], "left": {"arms": ["anchor"]}}],
        "figure": {
            "kind": "bar", "x": "arm", "y": "test.recall_at_1", "title": " ".join(texts.values()),
            "x_label": texts["image"], "y_label": texts["script"],
        },
    }  # fmt: skip
    make_project(folder, {"hostile": json.dumps(study)})
    raw = f"data/raw/{FOLDER_NAME}"
    data = {
        "data.name": "folder", "data.alias": "hostile", "data.raw": raw,
        "data.table": f"{FOLDER_NAME}.csv", "data.path_column": texts["script"],
        "data.class_column": texts["image"],
    }  # fmt: skip
    known = {f"data.{key}" for key in FolderData.model_fields}
    params = {
        key: value
        for key, value in {**load_params(folder / "params.yaml"), **data}.items()
        if not key.startswith("data.") or key in known
    }
    (folder / "params.yaml").write_text(json.dumps(unflatten(params)), encoding="utf-8")
    _write_images(folder / raw, list(texts.values()), columns=(texts["script"], texts["image"]))
    return folder


def make_question(sentinel: str) -> str:
    """Returns a question with all attacks, as one line."""
    return " ".join(["Harmless?", *" ".join(make_hostile_texts(sentinel).values()).split()])


def _write_images(folder: Path, names: list[str], *, columns: tuple[str, str]) -> None:
    # Equal up to case, so that messages name them as probably one class.
    classes = [*names, *(name.upper() for name in names)]
    folder.mkdir(parents=True)
    with open(folder / f"{FOLDER_NAME}.csv", "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(columns)
        for label, name in enumerate(classes):
            for number in range(IMAGES_PER_CLASS):
                path = f"{label}-{number}-{FOLDER_NAME}.png"
                Image.fromarray(draw_pixels(100 * label + number, 32, 32)).save(folder / path)
                writer.writerow([path, name])
