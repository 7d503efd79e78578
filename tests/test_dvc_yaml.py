"""What DVC makes of this project's dvc.yaml; `dml stage` is a stub, see dvc_projects."""

import ast
import json
import shutil
from pathlib import Path

import pytest
import yaml

from tasks.versioning.repo import commit_stage, stale_stages
from tasks.versioning.stages import TRACKED_FILE, list_tracked
from tests.references.dvc_projects import (
    calls,
    commit_git,
    list_definitions,
    list_stages,
    make_project,
    run,
    run_dvc,
    run_stage,
)

ROOT = Path(__file__).parents[1]
DEFINITION = yaml.safe_load((ROOT / "dvc.yaml").read_text(encoding="utf-8"))
STAGES = list_definitions()
ALL = ["prepare", *(f"{s}@{x}" for s in ("sweep", "evaluate", "report") for x in "ab")]


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A project all of whose stages ran outside DVC and were committed."""
    folder = make_project(tmp_path_factory.mktemp("finished"))
    for name in list_stages(folder):
        run_stage(folder, name)
        commit_stage(folder, name)
    commit_git(folder, "results")
    calls(folder)
    return folder


@pytest.fixture
def project(finished, tmp_path):
    """A copy of the finished project that a test may change."""
    return Path(shutil.copytree(finished, tmp_path / "project", symlinks=True))


def append(file, text):
    file.write_text(file.read_text(encoding="utf-8") + text, encoding="utf-8")


def test_a_fresh_clone_tracks_the_default_study():
    assert DEFINITION["vars"] == [str(TRACKED_FILE)]
    assert list_tracked(ROOT)[0] == "main"
    assert all((ROOT / "studies" / f"{name}.yaml").is_file() for name in list_tracked(ROOT))


def test_every_code_dependency_exists():
    names = {name for stage in STAGES.values() for name in stage["deps"]}
    assert [name for name in names if "$" not in name and not (ROOT / name).exists()] == []


# What runs around a stage: imports, locks, logs, retries, the restoring of damaged files.
AROUND = {
    "dml_core/lazy_names.py",
    "dml_core/process_memory.py",
    # A sweep that its minutes end is no finished stage.
    "tasks/budget.py",
    "tasks/guardian.py",
    "tasks/machine_faults.py",
    "tasks/secrets.py",
    "tasks/process.py",
    "tasks/run_log.py",
    "tasks/sources.py",
    "tasks/step_progress.py",
    "tasks/study.py",
    "tasks/versioning",
}
# For each stage the module that does its work, and what that imports without its numbers
# depending on it.
ENTRIES = {
    # Where the work of a stage is done changes no number: nodes and this machine give equal bits.
    "prepare": (
        "tasks.prepare",
        {"dml_core/config", "dml_core/trials", "tasks/prepare.py", "tasks/prepare_on_nodes.py"}
        | {"tasks/sweep"},
    ),
    "sweep": ("tasks.sweep.run", set()),
    # The statistics choose the model whose pictures are shown, and change no score.
    "evaluate": ("tasks.evaluate", {"dml_core/analysis", "dml_core/config", "tasks/sweep"}),
    # What the report imports of these comes with the reading of scores.json.
    "report": (
        "tasks.report",
        {f"dml_core/{name}" for name in ("config", "data", "evaluation", "losses", "measures")}
        | {f"dml_core/{name}" for name in ("models", "samplers", "training", "trials")}
        | {"dml_core/devices.py", "dml_core/seeding.py"},
    ),
}


@pytest.mark.parametrize("stage", STAGES)
def test_a_stage_depends_on_all_code_that_its_numbers_come_from(stage):
    entry, without_effect = ENTRIES[stage]
    listed = [name for name in STAGES[stage]["deps"] if "$" not in name]
    used = {path.relative_to(ROOT) for path in imported_files(entry)}
    missing = [
        str(path)
        for path in sorted(used)
        if path.name != "__init__.py"
        and not any(path.is_relative_to(name) for name in [*listed, *without_effect, *AROUND])
    ]
    assert missing == []


def imported_files(module):
    """Files of this project that a module imports, directly or through others, early or late."""
    found, names = set(), [module]
    while names:
        file = ROOT.joinpath(*names.pop().split("."))
        file = file / "__init__.py" if file.is_dir() else file.with_suffix(".py")
        if not file.exists() or file in found:
            continue
        found.add(file)
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                names += [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and node.module:
                names += [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
    return {file for file in found if file.is_relative_to(ROOT)}


def test_only_evaluate_depends_on_the_test_images():
    readers = [
        name
        for name, stage in STAGES.items()
        if any(d.endswith(("/test", "${data.alias}")) for d in stage["deps"])
    ]
    assert readers == ["evaluate"]


def test_committed_files_hold_no_paths_of_a_machine():
    for name in ("dvc.yaml", ".dvc/config", ".dvcignore"):
        assert str(ROOT) not in (ROOT / name).read_text(encoding="utf-8")


def test_stages_run_in_order(finished):
    assert list_stages(finished) == ALL


def test_one_target_brings_the_stages_before_it(finished):
    wanted = ["prepare", "sweep@b", "evaluate@b", "report@b"]
    assert list_stages(finished, ("report@b",)) == wanted


def test_nothing_is_left_for_dvc_after_stages_ran_outside_it(project):
    assert stale_stages(project) == []
    said = run_dvc(project, "repro")
    assert "Data and pipelines are up to date" in said
    assert calls(project) == []


def test_dvc_repro_leaves_nothing_to_do_outside_and_the_same_lock_file(finished, tmp_path):
    folder = make_project(tmp_path)
    assert stale_stages(folder) == ALL
    run_dvc(folder, "repro")
    assert sorted(calls(folder)) == sorted(ALL)
    assert stale_stages(folder) == []
    locks = [yaml.safe_load((f / "dvc.lock").read_text()) for f in (folder, finished)]
    assert locks[0] == locks[1]


def test_a_changed_study_makes_only_its_own_stages_stale(project):
    append(project / "studies" / "b.yaml", "trials_per_arm: 3\n")
    assert stale_stages(project) == ["sweep@b", "evaluate@b", "report@b"]


def test_a_changed_loss_makes_sweeps_stale_and_not_the_data(project):
    append(project / "dml_core" / "losses" / "triplet.py", "# another margin\n")
    # The evaluation measures steps and gradients of the losses, so it reads their code too.
    assert stale_stages(project) == ["sweep@a", "sweep@b", "evaluate@a", "evaluate@b"]
    after = stale_stages(project, with_downstream=True)
    assert after == [name for name in ALL if name != "prepare"]


def test_a_changed_statistic_makes_only_reports_stale(project):
    append(next((project / "dml_core" / "analysis").glob("*.py")), "# another interval\n")
    assert stale_stages(project) == ["report@a", "report@b"]


def test_changed_test_images_leave_the_sweeps_alone(project):
    (project / "data" / "prepared" / "glyphs" / "test" / "images.bin").write_text("other")
    assert stale_stages(project) == ["prepare", "evaluate@a", "evaluate@b"]


@pytest.mark.parametrize(
    ("former", "new", "stale"),
    [
        ("learning_rate: 2e-3", "learning_rate: 0.5", ["sweep@a", "sweep@b"]),
        ("address: local", "address: auto", []),
        ("alias: champion", "alias: best", []),
    ],
)
def test_a_parameter_makes_those_stale_whose_numbers_it_changes(project, former, new, stale):
    file = project / "params.yaml"
    text = file.read_text()
    assert text.count(former) == 1
    file.write_text(text.replace(former, new))
    assert stale_stages(project) == stale


def test_byte_code_changes_nothing(project):
    cache = project / "dml_core" / "losses" / "__pycache__"
    cache.mkdir()
    (cache / "triplet.cpython-311.pyc").write_bytes(b"code")
    assert stale_stages(project) == []


def test_new_raw_data_make_the_data_stale(project):
    (project / "data" / "raw" / "birds.tar").write_text("pictures")
    assert stale_stages(project) == ["prepare"]


@pytest.mark.parametrize("place", ["project/pictures", "elsewhere"])
def test_changed_images_of_any_raw_folder_make_the_data_stale(project, tmp_path, place):
    image = tmp_path / place / "wren" / "1.png"
    image.parent.mkdir(parents=True)
    image.write_text("picture")
    raw = "pictures" if place.startswith("project") else str(tmp_path / place)
    params = project / "params.yaml"
    text = params.read_text()
    assert text.count("raw: data/raw ") == 1
    params.write_text(text.replace("raw: data/raw ", f"raw: {raw} "))
    assert stale_stages(project, ["prepare"]) == ["prepare"]
    commit_stage(project, "prepare")
    assert stale_stages(project, ["prepare"]) == []
    image.write_text("another picture")
    assert stale_stages(project, ["prepare"]) == ["prepare"]


def test_a_single_target_runs_alone(project):
    append(project / "studies" / "a.yaml", "seeds: [1]\n")
    append(project / "studies" / "b.yaml", "seeds: [1]\n")
    run_dvc(project, "repro", "report@b")
    assert calls(project) == ["sweep@b", "evaluate@b", "report@b"]
    assert stale_stages(project) == ["sweep@a", "evaluate@a", "report@a"]


@pytest.mark.slow
def test_an_experiment_sets_a_parameter_and_shows_in_metrics_and_plots(project):
    run_dvc(project, "exp", "run", "--set-param", "optimizer.learning_rate=0.001", "report@a")
    assert calls(project) == ["sweep@a", "evaluate@a", "report@a"]
    params = yaml.safe_load((project / "params.yaml").read_text())
    assert params["optimizer"]["learning_rate"] == 0.001
    difference = json.loads(run_dvc(project, "metrics", "diff", "--json", "HEAD"))
    changed = difference["reports/a/metrics.json"]["small.map_at_r"]
    assert changed["old"] != changed["new"]
    run_dvc(project, "plots", "show", "--out", "page")
    page = (project / "page" / "index.html").read_text()
    assert "map_at_r" in page
    assert "scores.csv" in page
    assert "figure.csv" in page
    assert "figure.svg" in page
    assert '"arm": "large"' in page


def test_git_keeps_no_data(project):
    (project / "data" / "raw" / "birds.tar").write_text("pictures")
    (project / "data" / "raw" / "birds.tar.dvc").write_text("outs: []\n")
    said = run(project, "git", "status", "--short", "--untracked-files=all")
    assert said.split() == ["??", "data/raw/birds.tar.dvc"]
