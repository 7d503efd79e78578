"""Reports as a reader sees them: every page of a few studies in a real browser."""

import contextlib
import shutil
from pathlib import Path

import pytest

from tasks.report import write_report
from tasks.study import StudyRequest
from tests.references.browsers import open_browser
from tests.references.made_up_results import HOSTILE, make_results

ROOT = Path(__file__).parents[2]
PAGES = ("index.html", "bars/index.html", "cells/index.html", "lines/index.html")
MANY_ARMS = "\n".join(
    f"  arm_with_a_long_name-{n}: {{sampler.batch_size: {30 + n}}}" for n in range(9)
)
STUDIES = {
    "bars": f"""
question: "Which of many arms with long names is best {HOSTILE}?"
source: a paper
claims:
  - {{text: The first wins, left: {{arms: [arm_with_a_long_name-0]}},
     right: {{arms: [arm_with_a_long_name-3]}}}}
  - {{text: The lost one wins, left: {{arms: [arm_with_a_long_name-1]}}}}
arms:
{MANY_ARMS}
nuisance: {{optimizer.learning_rate: {{choice: [0.002, 0.006]}}}}
searcher: grid
seeds: [0, 1, 2]
figure: {{kind: bar, x: arm, y: [test.recall_at_1, test.map_at_r]}}
figures: [{{kind: bar, x: arm, y: [cost.step_seconds, cost.memory_mib]}}]
measures: [step_cost]
published:
  - dataset: CUB-200-2011
    backbone: BN-Inception
    source: a paper, table 1
    series: {{plain: {{triplet: 35.9, n_pair: 51.9}}, expanded: {{triplet: 44.3, n_pair: 55.2}}}}
""",
    "lines": """
question: Does a larger batch help?
arms: {anchor: {loss.name: proxy_anchor}, triplet: {loss.name: triplet}}
grid: {sampler.batch_size: [30, 60, 120]}
seeds: [0, 1]
figure: {kind: lines, x: sampler.batch_size, group: loss.name, log_x: true}
figures:
  - {kind: lines, x: seconds, y: [validation.recall_at_1, train.loss]}
  - {kind: lines, x: hardness, y: [gradient.positive, gradient.negative]}
  - {kind: lines, x: "*", y: test.recall_at_*}
measures: [gradients]
published:
  - dataset: Cars-196
    backbone: BN-Inception
    source: a paper, table 6
    series: {Proxy-Anchor: {30: 84.6, 60: 86.2, 120: 86.3}}
""",
    "cells": """
question: Which alpha and delta?
fixed: {loss.name: proxy_anchor, evaluation.class_distances: true}
grid: {loss.alpha: [8, 32], loss.delta: [0.1, 0.2]}
seeds: [0, 1]
figure: {kind: heatmap, x: loss.delta, group: loss.alpha}
figures: [{kind: matrices, y: table.hardest_distances}]
""",
}
LOST = {"bars": "arm_with_a_long_name-1", "lines": "anchor-60", "cells": "alpha-8-delta-0.2"}


@pytest.fixture(scope="module")
def reports(tmp_path_factory):
    """Reports of three studies that draw every kind of figure, each with an arm that failed."""
    folder = tmp_path_factory.mktemp("project")
    shutil.copyfile(ROOT / "params.yaml", folder / "params.yaml")
    (folder / "studies").mkdir()
    with contextlib.chdir(folder):
        for name, text in STUDIES.items():
            (folder / "studies" / f"{name}.yaml").write_text(text)
            request = StudyRequest(study=name)
            context = make_results(request, missing=[LOST[name]])
            assert LOST[name] in [arm.name for arm in context.study.arms]
            write_report.fn(request, "http://localhost:5000/#/compare-runs?runs=1")
    return folder / "reports"


@pytest.fixture(scope="module")
def browser():
    with open_browser() as opened:
        yield opened


@pytest.fixture
def open_page(browser, reports):
    """Opens a page and remembers everything that the browser complains about or asks for."""
    contexts = []

    def open_one(name, *, width=1100, **options):
        context = browser.new_context(viewport={"width": width, "height": 800}, **options)
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(120_000)
        page.complaints, page.requests = [], []
        page.on("console", lambda message: page.complaints.append(message.text))
        page.on("pageerror", lambda error: page.complaints.append(str(error)))
        page.on("request", lambda request: page.requests.append(request.url))
        page.goto((reports / name).as_uri(), wait_until="load")
        return page

    yield open_one
    for context in contexts:
        context.close()


def text_of(page, column):
    return page.locator(
        f"table.sortable >> nth=0 >> tbody tr > :nth-child({column})"
    ).all_inner_texts()


@pytest.mark.integration
@pytest.mark.parametrize("name", PAGES)
def test_a_page_opens_without_a_complaint_and_asks_nobody(open_page, reports, name):
    page = open_page(name)
    widths = page.evaluate("[...document.images].map((image) => image.naturalWidth)")
    assert len(widths) >= 3
    assert min(widths) > 0
    assert page.complaints == []
    assert [url for url in page.requests if not url.startswith("data:")] == [
        (reports / name).as_uri()
    ]
    assert page.title() != "broken"


@pytest.mark.integration
@pytest.mark.parametrize("name", PAGES)
def test_nothing_overflows_on_a_phone(open_page, name):
    page = open_page(name, width=375, is_mobile=True, has_touch=True, device_scale_factor=2)
    assert page.evaluate("document.documentElement.scrollWidth") <= 375
    assert page.evaluate("window.innerWidth") == 375


@pytest.mark.integration
@pytest.mark.parametrize("name", PAGES[1:])
def test_figures_and_verdicts_are_read_on_a_phone_without_a_swipe(open_page, name):
    page = open_page(name, width=390, is_mobile=True, has_touch=True, device_scale_factor=2)
    images = page.evaluate(
        """[...document.querySelectorAll("img.figure")].map((image) => [
            image.getBoundingClientRect().right, image.naturalWidth,
            image.parentElement.parentElement.scrollWidth, image.currentSrc === image.src])"""
    )
    assert len(images) >= 3
    for right, natural, content, is_wide in images:
        assert right <= 390
        assert content <= 390
        # Drawn for this width: type keeps about its size. A wide drawing has some 690 pixels.
        assert natural < 400
        assert not is_wide
    cells = page.locator("table.sortable >> nth=0 >> td.verdict-cell")
    boxes = [cells.nth(place).bounding_box() for place in range(cells.count())]
    assert all(box["x"] >= 0 and box["x"] + box["width"] <= 390 for box in boxes)
    # A card names its cells, and still sorts.
    label = page.eval_on_selector("td", "(td) => getComputedStyle(td, '::before').content")
    assert "R@1" in label
    heading = page.locator("table.sortable >> nth=0 >> thead th >> nth=1")
    heading.locator("button").click()
    assert heading.get_attribute("aria-sort") == "descending"


@pytest.mark.integration
def test_the_table_sorts_by_click_and_by_key(open_page):
    page = open_page("bars/index.html")
    heading = page.locator("table.sortable >> nth=0 >> thead th >> nth=1")
    before = text_of(page, 1)
    assert heading.get_attribute("aria-sort") == "none"
    heading.locator("button").click()
    assert heading.get_attribute("aria-sort") == "descending"
    scores = [text.split("\n")[0] for text in text_of(page, 2)]
    # The arm without a score comes last, whatever the order.
    assert scores[-1] == "no score"
    numbers = [float(text) for text in scores[:-1]]
    assert len(numbers) == 8
    assert numbers == sorted(numbers, reverse=True)
    heading.locator("button").focus()
    page.keyboard.press("Enter")
    assert heading.get_attribute("aria-sort") == "ascending"
    again = [text.split("\n")[0] for text in text_of(page, 2)]
    assert again == [*scores[-2::-1], "no score"]
    page.locator("table.sortable >> nth=0 >> thead th >> nth=0 >> button").click()
    assert text_of(page, 1) == sorted(before)
    assert heading.get_attribute("aria-sort") == "none"


@pytest.mark.integration
def test_dark_and_light_differ_and_figures_stay_on_white(open_page):
    read = "(element) => getComputedStyle(element).backgroundColor"
    grounds = {}
    for scheme in ("light", "dark"):
        page = open_page("lines/index.html", color_scheme=scheme)
        grounds[scheme] = page.eval_on_selector("body", read)
        assert page.eval_on_selector(".card img", read) == "rgb(255, 255, 255)"
        assert page.complaints == []
    assert grounds["light"] != grounds["dark"]


@pytest.mark.integration
def test_print_is_light_and_shows_all_columns(open_page, tmp_path):
    page = open_page("bars/index.html", width=794, color_scheme="dark")
    page.emulate_media(media="print", color_scheme="dark")
    ink = page.eval_on_selector("body", "(element) => getComputedStyle(element).color")
    assert ink == "rgb(28, 28, 28)"
    assert not page.locator("nav").is_visible()
    assert page.evaluate("document.documentElement.scrollWidth") <= 794
    page.pdf(path=tmp_path / "page.pdf", format="A4")
    assert (tmp_path / "page.pdf").stat().st_size > 10_000


@pytest.mark.integration
def test_the_front_page_leads_to_every_study_and_back(open_page):
    page = open_page("index.html")
    assert page.locator("article h2 a").count() == 3
    page.locator("article h2 a").first.click()
    page.wait_for_url("**/bars/index.html")
    assert page.locator("h1").inner_text().endswith(f"{HOSTILE}?")
    page.locator("nav a").click()
    page.wait_for_url("**/reports/index.html")
