"""What is deleted of a study; tests/flows/test_pipeline.py cleans one that was trained."""

import json
import os
import shutil
from pathlib import Path

import pytest

from dml_core.config.loading import load_project_config
from dml_core.trials.ledger import SweepIsRunning, hold_folder
from tasks.report import write_report
from tasks.run_log import logged_run
from tasks.storage.cleaning import RunWorks, clean, plan_cleaning, show_size
from tasks.storage.usage import Measure, join_shared, measure_usage
from tasks.study import StudyRequest, load_context
from tests.references.made_up_results import make_results

ROOT = Path(__file__).parents[3]
STUDY = """
question: Which of two losses?
arms: {anchor: {loss.name: proxy_anchor}, triplet: {loss.name: triplet}}
seeds: [0, 1]
"""
OWN, SHARED, ORPHAN = ("0123456789abcdef", "fedcba9876543210", "00000000000000ff")


@pytest.fixture
def context(tmp_path, monkeypatch):
    """A study with made-up results; another study names one of its two trials."""
    monkeypatch.chdir(tmp_path)
    shutil.copyfile(ROOT / "params.yaml", "params.yaml")
    Path("studies").mkdir()
    Path("studies/asked.yaml").write_text(STUDY)
    request = StudyRequest(study="asked")
    context = make_results(request)
    write_report.fn(request, "")
    for key in (OWN, SHARED, ORPHAN):
        (context.trials_folder / key / "checkpoints").mkdir(parents=True)
        (context.trials_folder / key / "checkpoints" / "1.pt").write_bytes(b"x" * 100_000)
    for study, keys in (("asked", (OWN, SHARED)), ("other", (SHARED,))):
        ledger = Path("results/.sweeps") / study / "trials.jsonl"
        ledger.parent.mkdir(parents=True)
        lines = [json.dumps({"event": "requested", "key": key}) for key in keys]
        ledger.write_text("\n".join(lines) + "\n")
    return context


def test_space_is_attributed_to_studies_and_counted_once(context):
    usage = measure_usage(load_project_config(Path("params.yaml")), Path())
    by_name = {each.name: each.sizes for each in usage.studies}
    assert set(by_name) == {"asked", "other"}
    assert 100_000 <= by_name["asked"]["trials"] < 200_000
    assert by_name["other"]["trials"] == 0
    assert min(by_name["asked"][kind] for kind in ("sweep", "evaluation", "report")) > 0
    shared = {each.what: each.size for each in join_shared(usage)}
    for what in ("trials of several studies", "trials that no study names"):
        assert 100_000 <= shared[what] < 200_000
    everything = Measure().add(Path("results"), Path("reports"))
    assert usage.total == pytest.approx(everything, abs=20_000)


def test_a_file_with_two_names_counts_once(tmp_path):
    (tmp_path / "one").write_bytes(b"x" * 50_000)
    os.link(tmp_path / "one", tmp_path / "two")
    assert 50_000 <= Measure().add(tmp_path) < 100_000


def test_report_answer_and_scores_survive_and_trials_of_others_too(context):
    plan = plan_cleaning(context)
    assert any("1 trials stay: other studies name them too" in line for line in plan.describe())
    assert plan.total > 100_000
    clean(plan)
    assert not (context.trials_folder / OWN).exists()
    assert (context.trials_folder / SHARED).is_dir()
    assert (context.trials_folder / ORPHAN).is_dir()
    assert not context.sweep_folder.exists()
    assert not context.working_folder.exists()
    assert (context.report_folder / "answer.json").is_file()
    assert (context.evaluate_folder / "scores.json").is_file()
    assert plan_cleaning(context).is_empty


def test_what_is_kept_by_name_stays(context):
    clean(plan_cleaning(context, keep=["trials", "record"]))
    assert (context.trials_folder / OWN).is_dir()
    assert (context.working_folder / "trials.jsonl").is_file()
    assert not context.sweep_folder.exists()


def test_everything_goes_where_that_is_wanted(context):
    clean(plan_cleaning(context, everything=True))
    assert not context.report_folder.exists()
    assert not context.evaluate_folder.parent.exists()
    assert "asked" not in Path("reports/index.html").read_text()


def test_a_study_that_works_is_refused(context):
    with hold_folder(context.working_folder), pytest.raises(SweepIsRunning, match="in use by"):
        plan_cleaning(context)
    message = f"a run of asked works: process {os.getpid()}"
    with logged_run(context.working_folder, study="asked") as log:
        log.write("stage started", stage="evaluate")
        with pytest.raises(RunWorks, match=message):
            plan_cleaning(load_context(context.request))
    with logged_run(context.working_folder, study="asked") as log:
        log.write("run ended")
    assert not plan_cleaning(context).is_empty


@pytest.mark.parametrize(
    ("size", "shown"), [(0, "0 B"), (999, "999 B"), (2_500_000, "2.5 MB"), (10**13, "10.0 TB")]
)
def test_sizes_are_shown_in_a_readable_unit(size, shown):
    assert show_size(size) == shown
