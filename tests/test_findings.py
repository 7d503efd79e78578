"""docs/findings.md says what the files of the runs beside it say."""

import json
import re
from pathlib import Path

from benchmarks.findings import FOLDER, PAGE, README, SECTION, render_page, render_readme

ROOT = Path(__file__).parents[1]
ON_CARS = {"loss_comparison", "adaptation"}


def test_every_number_of_a_run_is_that_of_its_files(monkeypatch):
    monkeypatch.chdir(ROOT)
    text = PAGE.read_text(encoding="utf-8")
    assert render_page(text) == text
    readme = README.read_text(encoding="utf-8")
    assert "<!-- losses -->" in readme
    assert render_readme(readme) == readme


def test_every_study_has_a_run_and_two_have_one_on_photographs():
    studies = {path.stem for path in (ROOT / "studies").glob("*.yaml")} - {"main"}
    named = set(SECTION.findall((ROOT / PAGE).read_text(encoding="utf-8")))
    assert named == studies | {f"{name}@cars" for name in ON_CARS}


def test_every_link_leads_to_a_file():
    text = (ROOT / PAGE).read_text(encoding="utf-8")
    links = [link for link in re.findall(r"\]\(([^)#]+)\)", text) if "://" not in link]
    assert links
    assert [link for link in links if not (ROOT / "docs" / link).is_file()] == []


def test_a_run_tells_where_it_comes_from():
    for path in sorted((ROOT / FOLDER).glob("*/run.json")):
        run = json.loads(path.read_text(encoding="utf-8"))
        assert re.match(r"[0-9a-f]{12}\b", run["commit"]), path
        assert run["command"].startswith("dml run "), path
        assert re.match(r"\d+ trials, [1-9][\d,]* s of training", run["training"]), path
