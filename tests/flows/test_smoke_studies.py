"""Every study of the project in its smallest size, from the data to the page in a browser."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from tests.references.browsers import open_browser
from tests.references.empty_databases import give_databases

ROOT = Path(__file__).parents[2]
NAMES = sorted(path.stem for path in (ROOT / "studies").glob("*.yaml"))
OF_EACH_KIND = {"main", "continuous", "precision"}
"""A study of class labels, one of continuous ones, and one with further measures."""
pytestmark = [pytest.mark.integration, pytest.mark.slow]


@pytest.fixture(scope="module")
def names(request):
    """The studies that this test run is about: all, or one of each kind."""
    items = [item for item in request.session.items if item.path == request.path]
    return sorted({item.callspec.params["name"] for item in items if hasattr(item, "callspec")})


@pytest.fixture(scope="module")
def project(tmp_path_factory, names):
    """The studies, run by one command."""
    folder = tmp_path_factory.mktemp("project")
    shutil.copytree(ROOT / "studies", folder / "studies")
    shutil.copyfile(ROOT / "params.yaml", folder / "params.yaml")
    give_databases(folder)
    command = [str(Path(sys.executable).with_name("dml")), "run", "--profile", "smoke"]
    command += ["--all"] if names == NAMES else names
    done = subprocess.run(
        command,
        cwd=folder,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=3600,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    (folder / "printed.txt").write_text(done.stdout, encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def browser():
    with open_browser() as opened:
        yield opened


@pytest.mark.parametrize(
    "name",
    [
        name if name in OF_EACH_KIND else pytest.param(name, marks=pytest.mark.nightly)
        for name in NAMES
    ],
)
def test_a_study_leaves_its_figures_numbers_and_page(project, browser, name):
    folder = project / "reports" / f"{name}@smoke"
    answer = json.loads((folder / "answer.json").read_text(encoding="utf-8"))
    assert answer["question"] in (project / "printed.txt").read_text(encoding="utf-8")
    for ending in ("png", "svg", "csv"):
        assert (folder / "figures" / f"figure.{ending}").stat().st_size > 0
    check_page(browser, folder / "index.html")


def test_the_front_page_lists_them(project, browser, names):
    page = check_page(browser, project / "reports" / "index.html")
    assert set(names) >= OF_EACH_KIND
    assert all(f"{name}@smoke" in page for name in names)


def test_all_studies_of_the_papers_are_there():
    assert len(NAMES) == 26  # 22 of the papers, three beyond them and the default one
    assert "main" in NAMES


def test_no_trial_failed(project, names):
    for name in names:
        sweep = project / "results" / f"{name}@smoke" / "sweep"
        trials = pq.read_table(sweep / "trials.parquet").to_pylist()
        assert [trial for trial in trials if trial["status"] == "failed"] == []


def check_page(browser, path):
    """Opens a page on a phone's screen: no complaint, no request, every image, no overflow."""
    page = browser.new_page(viewport={"width": 375, "height": 800})
    try:
        complaints, requests = [], []
        page.on("console", lambda message: complaints.append(message.text))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("request", lambda request: requests.append(request.url))
        page.goto(path.as_uri(), wait_until="load", timeout=120_000)
        assert complaints == []
        assert [url for url in requests if not url.startswith(("file:", "data:", "blob:"))] == []
        widths = page.eval_on_selector_all("img", "images => images.map(i => i.naturalWidth)")
        assert widths
        assert 0 not in widths
        assert page.evaluate("document.documentElement.scrollWidth") <= 375
        return page.content()
    finally:
        page.close()
