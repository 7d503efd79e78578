"""`dml serve` as a user has it: a real process, a real browser, and Ctrl-C."""

import base64
import contextlib
import io
import os
import re
import shutil
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

import pytest
from playwright.sync_api import expect
from typer.testing import CliRunner

from flows.cli import app
from tasks.search.indexes import build_index
from tasks.study import load_context
from tests.references.answered_projects import REQUEST
from tests.references.browsers import open_browser
from tests.references.drawn_flowers import draw_flower
from tests.references.running_servers import wait_for

pytestmark = pytest.mark.integration
expect.set_options(timeout=120_000)
DML = Path(sys.executable).with_name("dml")
HOSTILE = "<img src=x onerror=document.title='broken'>"
DROP = """([name, text]) => {
  const bytes = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
  const data = new DataTransfer();
  data.items.add(new File([bytes], name, { type: "image/png" }));
  document.dispatchEvent(new DragEvent("dragover", { dataTransfer: data, bubbles: true }));
  document.dispatchEvent(new DragEvent("drop", { dataTransfer: data, bubbles: true }));
}"""
PASTE = """(text) => {
  const bytes = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
  const data = new DataTransfer();
  data.items.add(new File([bytes], "image.png", { type: "image/png" }));
  document.dispatchEvent(new ClipboardEvent("paste", { clipboardData: data, bubbles: true }));
}"""


@pytest.fixture(scope="module")
def project(answered_project, tmp_path_factory):
    """A copy of the answered project, with a hostile file name and an index of its photos."""
    folder = tmp_path_factory.mktemp("served") / "project"
    shutil.copytree(answered_project, folder)
    draw_flower(3, 90).save(folder / "photos" / "flower-03" / f"{HOSTILE}.png")
    with contextlib.chdir(folder):
        build_index(load_context(REQUEST), folder / "photos")
    return folder


@pytest.fixture(scope="module")
def served(project):
    """The address of a running `dml serve`; it ends by Ctrl-C, cleanly."""
    log = project / "serve.log"
    with open(log, "wb") as file:
        process = subprocess.Popen(
            [str(DML), "serve", "flowers"],
            cwd=project,
            stdout=file,
            stderr=subprocess.STDOUT,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            start_new_session=True,
        )
    try:
        found = wait_for(lambda: re.search(r"open (http\S+)", log.read_text()), seconds=120)
        assert found, log.read_text()
        yield found[1]
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=60) == 0, log.read_text()
        assert log.read_text().splitlines()[-1] == "stopped"
        assert "Traceback" not in log.read_text()
    finally:
        process.kill()
        process.wait()


@pytest.fixture(scope="module")
def browser():
    with open_browser() as opened:
        yield opened


@pytest.fixture
def page(browser, served):
    """The page in a window; everything that the browser complains about is noted."""
    context = browser.new_context(viewport={"width": 1100, "height": 900})
    found = context.new_page()
    found.set_default_timeout(120_000)
    found.complaints = []
    found.on("console", lambda message: found.complaints.append(message.text))
    found.on("pageerror", lambda error: found.complaints.append(str(error)))
    found.goto(served)
    yield found
    context.close()


def make_picture(label=3):
    content = io.BytesIO()
    draw_flower(label, 50).save(content, "PNG")
    return content.getvalue()


def wait_for_results(page, count, said="nearest"):
    """Waits until the results of a search are there, and the pictures that are in view."""
    expect(page.locator("#status")).to_contain_text(said)
    expect(page.locator("#results li")).to_have_count(count)
    script = "[...document.querySelectorAll('#results img')].slice(0, 2).map((i) => i.naturalWidth)"
    assert wait_for(lambda: min(page.evaluate(script)) > 0, seconds=60)


def test_a_chosen_dropped_or_pasted_picture_shows_the_nearest(page):
    picture = {"name": "mine.png", "mimeType": "image/png", "buffer": make_picture()}
    page.set_input_files("#file", picture)
    wait_for_results(page, 24)
    assert page.locator("#status").inner_text() == "24 nearest images of mine.png"
    first = page.locator("#results .score").first.inner_text()
    assert re.fullmatch(r"similarity 0\.9\d\d|similarity 1\.000", first)
    names = page.locator("#results .name").all_inner_texts()
    text = base64.b64encode(make_picture()).decode()
    page.evaluate(DROP, ["dropped.png", text])
    wait_for_results(page, 24, "dropped.png")
    assert page.locator("#results .name").all_inner_texts() == names
    page.select_option("#count", "12")
    wait_for_results(page, 12)
    page.evaluate(PASTE, text)
    wait_for_results(page, 12, "image.png")
    assert page.locator("#results .name").all_inner_texts() == names[:12]
    assert page.complaints == []


def test_a_result_is_enlarged_and_searched_for_and_its_name_is_text(page):
    picture = {"name": "mine.png", "mimeType": "image/png", "buffer": make_picture()}
    page.set_input_files("#file", picture)
    wait_for_results(page, 24)
    hostile = page.locator("#results li", has_text=HOSTILE)
    assert hostile.count() == 1
    hostile.locator("button.picture").click()
    assert page.locator("dialog").is_visible()
    assert HOSTILE in page.locator("#caption").inner_text()
    page.keyboard.press("Escape")
    hostile.locator("button.more").click()
    wait_for_results(page, 24, "onerror")
    assert page.locator("#results .score").first.inner_text() == "similarity 1.000"
    assert page.title() == "Search with flowers"
    assert page.complaints == []


def test_a_file_that_is_no_picture_gives_a_message(page):
    wrong = {"name": "notes.png", "mimeType": "image/png", "buffer": b"hello"}
    page.set_input_files("#file", wrong)
    page.wait_for_selector("#status.error")
    assert "is not an image of a known format" in page.locator("#status").inner_text()
    assert page.locator("#results li").count() == 0


def test_it_fits_a_phone_in_the_dark(browser, served):
    context = browser.new_context(
        viewport={"width": 375, "height": 700}, is_mobile=True, has_touch=True, color_scheme="dark"
    )
    page = context.new_page()
    page.goto(served)
    picture = {"name": "mine.png", "mimeType": "image/png", "buffer": make_picture()}
    page.set_input_files("#file", picture)
    wait_for_results(page, 24)
    assert page.evaluate("document.documentElement.scrollWidth") <= 375
    lefts = page.eval_on_selector_all(
        "#results li", "(items) => items.map((item) => item.getBoundingClientRect().left)"
    )
    assert len(set(lefts)) == 2
    context.close()


def test_only_loopback_the_key_and_known_hosts_open_the_page(served):
    host = re.match(r"http://(127\.0\.0\.1:\d+)/[\w-]{20,}/$", served)[1]
    for address, headers in (
        (f"http://{host}/", {}),
        (f"http://{host}/{'x' * 22}/", {}),
        (served, {"Host": "evil.example"}),
    ):
        request = urllib.request.Request(address, headers=headers)  # noqa: S310
        with pytest.raises(urllib.error.HTTPError, match=r"HTTP Error 40[04]"):
            urllib.request.urlopen(request, timeout=60)  # noqa: S310


def test_the_written_page_opens_without_a_complaint(project, browser):
    pictures = ["photos/flower-03/1.jpg", "photos/flower-05/2.jpg"]
    with contextlib.chdir(project):
        done = CliRunner().invoke(app, ["search", "flowers", *pictures, "--top", "6"])
    assert done.exit_code == 0, done.output
    assert re.search(r"   1  similarity 1\.000  flower-03/1\.jpg", done.output)
    path = project / "results/flowers/search/page.html"
    assert f"shown in {path.relative_to(project)}" in done.output
    page = browser.new_page(viewport={"width": 375, "height": 700})
    complaints = []
    page.on("console", lambda message: complaints.append(message.text))
    page.goto(path.as_uri())
    widths = page.evaluate("[...document.images].map((image) => image.naturalWidth)")
    assert len(widths) == 14
    assert min(widths) > 0
    assert page.evaluate("document.documentElement.scrollWidth") <= 375
    assert complaints == []
    page.close()
