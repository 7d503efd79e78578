"""`dml open` without servers; tests/flows/test_schedules.py has them."""

import shutil
import webbrowser
from pathlib import Path

import pytest

from flows.commands.open import open_pages, open_study
from flows.servers.pages import StudyPage
from tasks.report import write_report
from tasks.study import StudyRequest
from tests.references.made_up_results import make_results

ROOT = Path(__file__).parents[3]
STUDY = """
question: Which of two losses?
arms: {anchor: {loss.name: proxy_anchor}, triplet: {loss.name: triplet}}
seeds: [0, 1]
"""
PATH = "/#/compare-runs?runs=%5B%22aa%22%5D&experiments=%5B%227%22%5D"


@pytest.fixture
def project(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("DISPLAY", raising=False)
    monkeypatch.delenv("WAYLAND_DISPLAY", raising=False)
    monkeypatch.delenv("BROWSER", raising=False)
    shutil.copyfile(ROOT / "params.yaml", "params.yaml")
    Path("studies").mkdir()
    Path("studies/asked.yaml").write_text(STUDY)
    return tmp_path


def report(url):
    request = StudyRequest(study="asked")
    make_results(request)
    write_report.fn(request, url)


def test_without_a_report_the_command_that_makes_one_is_named(project):
    with pytest.raises(FileNotFoundError, match=r"asked has no report .* Run: dml run asked$"):
        open_study("asked")


def test_without_servers_the_report_is_named_and_how_to_start_them(project, capsys):
    report(PATH)
    open_study("asked")
    assert capsys.readouterr().out.splitlines() == [
        f"report:  {(project / 'reports' / 'asked' / 'index.html').as_uri()}",
        "MLflow:  no server is up; start it with: dml up",
        "Prefect: no server is up; start it with: dml up",
        "no browser can be opened here; copy an address, or open the report's file elsewhere",
    ]


def test_runs_on_another_server_are_named_by_its_address(project, capsys):
    report(f"https://team.example:5000{PATH}")
    open_study("asked", only_print=True)
    lines = capsys.readouterr().out.splitlines()
    assert (
        lines[1]
        == "MLflow:  https://team.example:5000/#/experiments/7/runs?workflowType=machine_learning"
    )


def test_the_browser_gets_the_pages_with_the_most_to_see(tmp_path, monkeypatch):
    script = tmp_path / "browser"
    script.write_text(f'#!/bin/sh\necho "$1" >> {tmp_path}/opened\n')
    script.chmod(0o755)
    monkeypatch.setenv("BROWSER", f"{script} %s")
    # Python reads the variable once.
    monkeypatch.setattr(webbrowser, "_tryorder", None)
    pages = [
        StudyPage("report", "file:///report.html"),
        StudyPage("MLflow", "http://a/#/experiments/7/runs", f"http://a{PATH}"),
        StudyPage("Prefect", "", advice="no server is up"),
    ]
    assert open_pages(pages)
    assert (tmp_path / "opened").read_text().split() == ["file:///report.html", f"http://a{PATH}"]
