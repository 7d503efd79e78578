import contextlib
import json
import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from dml_core.analysis.claims import Judgement
from dml_core.analysis.recommendation import Untrained
from dml_core.analysis.summary import summarize
from dml_core.studies.metrics import PLAIN
from tasks.report import write_report
from tasks.report_page.answer import make_headline
from tasks.report_page.page import write_front_page, write_summary
from tasks.report_page.style import label_metric, name_metric
from tasks.report_page.tables import (
    describe_seconds,
    make_arm_table,
    make_command,
    make_factor_table,
)
from tasks.study import StudyRequest, read_stage_seconds, timed_stage
from tests.references.made_up_results import HOSTILE, make_results, make_score

ROOT = Path(__file__).parents[3]
STUDY = f"""
question: "Which loss {HOSTILE}?"
source: "a paper & {HOSTILE}"
claims:
  - text: "Proxy-Anchor wins {HOSTILE}"
    left: {{arms: [anchor]}}
    right: {{arms: [triplet]}}
arms:
  anchor: {{loss.name: proxy_anchor}}
  triplet: {{loss.name: triplet}}
  lost: {{loss.name: proxy_nca}}
nuisance: {{optimizer.learning_rate: {{choice: [0.002, 0.006]}}}}
searcher: grid
seeds: [0, 1, 2]
figures:
  - {{kind: lines, x: epoch, y: [validation.recall_at_1, train.loss]}}
"""


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    """The report of a study with hostile names and an arm that failed; nothing was trained."""
    folder = tmp_path_factory.mktemp("project")
    shutil.copyfile(ROOT / "params.yaml", folder / "params.yaml")
    (folder / "studies").mkdir()
    (folder / "studies" / "asked.yaml").write_text(STUDY)
    request = StudyRequest(study="asked")
    with contextlib.chdir(folder):
        context = make_results(request, missing=["lost"], reason=f"it diverged {HOSTILE}")
        with timed_stage(context, "sweep"):
            pass
        assert list(read_stage_seconds(context)) == ["sweep"]
        answer = write_report.fn(request, "http://localhost:5000/#/compare-runs?runs=1")
    assert answer.best_arm in ("anchor", "triplet")
    return folder / "reports"


def test_names_are_escaped_everywhere(report):
    for page in (report / "asked" / "index.html", report / "index.html"):
        text = page.read_text()
        assert HOSTILE not in text
        assert "&lt;script&gt;document.title" in text
        # The one script is the page's own.
        assert text.count("<script") == (1 if page.parent.name == "asked" else 0)


def test_a_page_holds_everything_and_fetches_nothing(report):
    text = (report / "asked" / "index.html").read_text()
    assert re.findall(r'src="(?!data:)', text) == []
    assert "<link" not in text
    for part in (
        "dml run asked",
        "da7a",
        "5b117",
        "torch 2",
        "6 trials, 24 s of training",
        "compare-runs",
    ):
        assert part in text, part
    assert text.count("<img") >= 5


def test_the_worst_classes_are_named_and_drawn(report):
    text = (report / "asked" / "index.html").read_text()
    section = re.search(r'<section aria-labelledby="classes">.*?</section>', text, re.DOTALL)[0]
    for part in (
        "The worst of 4 test classes",
        "plain",
        "mostly found instead",
        "images of a class",
    ):
        assert part in section, part
    assert section.count("<img") == 1


def test_the_box_names_the_winner_its_model_and_the_next_commands(report):
    text = (report / "asked" / "index.html").read_text()
    box = re.search(r'<section class="card take-away".*?</section>', text, re.DOTALL)[0]
    best = json.loads((report / "asked" / "answer.json").read_text())["best_arm"]
    for part in (
        f"<strong>{best}</strong>",
        "<dt><code>optimizer.learning_rate</code></dt><dd><code>0.002</code></dd>",
        "load_model(&#34;models:/dml-asked@champion&#34;)",
        "dml export asked --format onnx",
        "dml index asked FOLDER",
        "dml search asked PICTURE",
        "dml serve asked",
    ):
        assert part in box, part


def test_a_lost_arm_stands_in_the_table_with_its_reason(report):
    text = (report / "asked" / "index.html").read_text()
    row = re.search(r'<th scope="row"[^>]*>lost</th>.*?</tr>', text, re.DOTALL)[0]
    assert "no score" in row
    assert "it diverged" in row
    assert "1 failed, 2 diverged" in row
    found = re.search(r'<th scope="row"[^>]*>anchor</th>.*?</tr>', text, re.DOTALL)[0]
    assert "learning_rate low" in found


def test_the_numbers_of_the_report_are_those_of_the_results(report):
    metrics = json.loads((report / "asked" / "metrics.json").read_text())
    mean = sum(make_score("recall_at_1", 0, seed) for seed in range(3)) / 3
    assert metrics["anchor"]["recall_at_1"] == pytest.approx(mean)
    assert metrics["lost"]["recall_at_1"] is None
    files = {path.name for path in (report / "asked" / "figures").iterdir()}
    wanted = {f"{stem}.{end}" for stem in ("figure", "figure-2", "curves") for end in
              ("png", "svg", "csv")}  # fmt: skip
    assert files == wanted | {"map.png", "map.svg"}


def test_the_front_page_is_the_same_in_any_order(tmp_path):
    def write(name):
        folder = tmp_path / name
        folder.mkdir(exist_ok=True)
        claims = {"supported": 1, "contradicted": 0, "cannot tell": 2}
        write_summary(
            folder,
            {"study": name, "question": f"What of {name}?", "headline": "None <b>knows</b>.",
             "claims": claims, "commit": "abc", "date": "2026-01-02"},
        )  # fmt: skip
        write_front_page(tmp_path)

    write("b")
    write("a")
    first = (tmp_path / "index.html").read_text()
    write("b")
    assert (tmp_path / "index.html").read_text() == first
    assert first.index("What of a?") < first.index("What of b?")
    assert "2 supported, 0 contradicted, 4 undecided" in first
    assert "None &lt;b&gt;knows" in first
    assert 'href="a/index.html"' in first
    assert not list(tmp_path.glob("*.partial"))


CLAIM = Judgement("it helps", "supported", 0.1, (0.05, 0.15), 3, "supported: by 10 points")
SCORES = {"plain": {0: 0.5, 1: 0.51, 2: 0.52}, "new": {0: 0.7, 1: 0.711, 2: 0.718}, "none": {}}


def test_the_headline_is_the_recommendation_and_the_claims():
    summary = summarize(SCORES, metric="R@1")
    contradicted = replace(CLAIM, verdict="contradicted")
    text = make_headline(summary, [CLAIM, contradicted, CLAIM])
    assert text.startswith(
        "Use new: R@1 71.0\N{NO-BREAK SPACE}%, 20.0 points ahead of the runner-up"
    )
    assert "Of the paper's 3 claims the run supports 2 and contradicts 1." in text
    assert text.endswith("1 of 3 arms have no score.")


def test_the_headline_for_distances_looks_for_the_lowest():
    text = make_headline(summarize(SCORES, higher_is_better=False, unit=PLAIN), [])
    assert text.startswith("Use plain: score 0.5100")


def test_the_headline_without_any_score():
    text = make_headline(summarize({"plain": {}, "new": {}}), [CLAIM])
    assert text.startswith("No arm has a score, so there is nothing to recommend.")


def test_the_table_sorts_by_numbers_and_has_the_best_the_chosen_and_the_untrained():
    summary = summarize(SCORES, untrained=Untrained("pixels", 0.3))
    budget = {"new": {"values": {"optimizer.learning_rate": 0.0061234}}}
    table = make_arm_table(summary, budget, metric="test.recall_at_1")
    assert table.headings[1:5] == ["R@1 (%)", "to the best (points)", "verdict", "chosen"]
    plain, new, none, pixels = table.rows
    assert (plain[1].text, plain[1].key) == ("51.0", pytest.approx(0.51))
    assert plain[2].text == "-20.0"
    assert plain[3].text.startswith("▼ almost certainly worse than new (-20.0 points")
    assert (new[2].text, new[3].text) == ("", "★ best")
    assert new[4].text == "learning_rate 0.00612"
    assert (none[1].text, none[1].key) == ("no score", "")
    assert (pixels[1].text, pixels[3].text) == ("30.0", "· no training")
    assert {len(row) for row in table.rows} == {len(table.headings)}


def test_columns_of_the_budget_without_content_are_left_out():
    summary = summarize(SCORES)
    spent = {"plain": {"spent": 3, "pruned": 2}, "new": {"spent": 3, "pruned": 0}}
    kept = make_arm_table(summary, spent, metric="test.recall_at_1").headings[4:]
    assert {"tries", "pruned"} <= set(kept)
    assert {"chosen", "failed", "at a bound"}.isdisjoint(kept)
    table = make_arm_table(summary, {}, metric="test.recall_at_1")
    assert {len(row) for row in table.rows} == {len(table.headings)}


def test_the_factors_have_their_table():
    scores = {f"{loss}-{dim}": {0: base + dim / 1e3, 1: base + dim / 1e3 + 0.001}
              for loss, base in (("a", 0.5), ("b", 0.6)) for dim in (32, 64)}  # fmt: skip
    coordinates = {arm: {"loss.name": arm[0], "dim": int(arm[2:])} for arm in scores}
    table = make_factor_table(summarize(scores, coordinates=coordinates), metric="test.recall_at_1")
    assert [row[0].text for row in table.rows] == ["loss.name", "dim"]
    assert [row[1].note for row in table.rows] == ["against b", "against 64"]
    assert table.rows[1][3].text == "▼ worse"
    assert make_factor_table(summarize(SCORES), metric="test.recall_at_1") is None


@pytest.mark.parametrize(
    ("metric", "name", "label"),
    [
        ("test.recall_at_4", "R@4", "R@4, test classes (%)"),
        ("validation.map_at_r", "MAP@R", "MAP@R, validation classes (%)"),
        ("test.ndcg_at_*", "nDCG@K", "nDCG@K, test classes (%)"),
        ("test.binary_recall_at_1", "R@1 of binary codes", "R@1 of binary codes, test classes (%)"),
        ("test.dim32_recall_at_1", "R@1 of the first 32 dimensions",
         "R@1 of the first 32 dimensions, test classes (%)"),
        ("test.dim*_recall_at_1", "R@1 of prefixes", "R@1 of prefixes, test classes (%)"),
        ("test.occluded_center_0.2_recall_at_1", "R@1, centre hidden 0.2",
         "R@1, centre hidden 0.2, test classes (%)"),
        ("test.corrupted_blur_3_recall_at_1", "R@1, blur 3", "R@1, blur 3, test classes (%)"),
        ("test.corrupted_blur_*_recall_at_1", "R@1, blur", "R@1, blur, test classes (%)"),
        ("test.fnmr_at_fmr_0.01", "FNMR at FMR 0.01", "FNMR at FMR 0.01, test classes (%)"),
        ("test.fnmr_at_fmr_*", "FNMR", "FNMR, test classes (%)"),
        ("test.threshold_at_fmr_0.01", "threshold at FMR 0.01",
         "threshold at FMR 0.01, test classes"),
        ("cost.memory_mib", "peak memory", "peak memory (MiB)"),
        ("cost.trained_parameters", "trained parameters", "trained parameters"),
        ("train.loss", "training loss", "training loss"),
    ],
)  # fmt: skip
def test_metrics_are_named_for_people(metric, name, label):
    assert name_metric(metric) == name
    assert label_metric(metric) == label


def test_the_command_repeats_the_request():
    request = StudyRequest(study="main", profile="smoke", overrides=("data.alias=my birds",))
    assert make_command(request) == "dml run main --profile smoke --set 'data.alias=my birds'"
    assert describe_seconds({"sweep": 300.4, "evaluate": 20.0}) == (
        "320 s (sweep 300 s, evaluate 20 s)"
    )
