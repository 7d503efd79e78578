"""Stages of studies that run at the same time in one project, with real processes and DVC."""

import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from dml_core.config import ConfigError
from tasks.study import StudyRequest, load_context
from tasks.versioning.repo import StageChanged, stale_stages
from tasks.versioning.session import DvcError, wait_while_locked
from tasks.versioning.stages import (
    TRACKED_FILE,
    PinnedRun,
    begin_stage,
    check_origin,
    describe_change,
    find_stale_stages,
    hold_stage,
    is_stage_stale,
    list_tracked,
    pin_run,
    record_stage,
    track_study,
)
from tests.references.dvc_projects import calls, environment, make_project, run_dvc, run_stage
from tests.references.tiny_projects import TWO_ARMS

ROOT = Path(__file__).parents[3]
# Says that it is there, waits for the word to begin, then asks and commits as a run does.
COMMIT = """
import sys
from tasks.study import StudyRequest
from tasks.versioning.stages import PinnedRun, is_stage_stale, record_stage

print("ready", flush=True)
sys.stdin.readline()
request = StudyRequest(study=sys.argv[1])
for stage in ("sweep", "evaluate"):
    assert is_stage_stale(stage, PinnedRun(request), on_wait=print), stage
    record_stage(stage, request, on_wait=print)
"""
# Holds the lock until the test ends it, as the commit of a large dataset does.
HOLD = """
import sys
from dvc.repo import Repo
with Repo(".").lock:
    print("held", flush=True)
    sys.stdin.readline()
"""


def start(folder, code, *arguments):
    process = subprocess.Popen(
        [sys.executable, "-c", code, *arguments],
        cwd=folder,
        env={**environment(folder), "PYTHONPATH": str(ROOT)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    process.first_line = process.stdout.readline()
    return process


@pytest.fixture
def started():
    """Takes the processes of a test, and ends those that it leaves."""
    processes = []
    yield processes
    for process in processes:
        if process.poll() is None:
            process.kill()
            process.communicate()


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A project in which the stages of both studies ran outside DVC, and only one is committed."""
    folder = make_project(tmp_path_factory.mktemp("made"))
    for stage in ("prepare", "sweep@a", "sweep@b", "evaluate@a", "evaluate@b"):
        run_stage(folder, stage)
    with pytest.MonkeyPatch.context() as patched:
        patched.chdir(folder)
        record_stage("prepare", StudyRequest(study="a"), on_wait=print)
    return folder


@pytest.fixture
def project(made, tmp_path, monkeypatch):
    """A copy of the project, which is the current folder."""
    folder = Path(shutil.copytree(made, tmp_path / "project", symlinks=True))
    monkeypatch.chdir(folder)
    return folder


def committed(folder):
    return set(yaml.safe_load((folder / "dvc.lock").read_text())["stages"])


@pytest.mark.integration
def test_two_processes_that_commit_at_once_keep_each_others_entries(project, started):
    holder = start(project, HOLD)
    started.append(holder)
    assert holder.first_line == "held\n"
    both = [start(project, COMMIT, study) for study in "ab"]
    started.extend(both)
    assert [process.first_line for process in both] == ["ready\n"] * 2
    for process in both:
        process.stdin.write("go\n")
        process.stdin.flush()
    # Both have met the lock once each of them has told that it waits.
    for process in both:
        assert f"(pid {holder.pid})" in process.stdout.readline()
    holder.communicate("end\n")
    for process in both:
        _, errors = process.communicate(timeout=300)
        assert process.returncode == 0, errors
    own = {f"{stage}@{study}" for stage in ("sweep", "evaluate") for study in "ab"}
    assert committed(project) == {"prepare", *own}


def test_a_study_gets_its_stages_when_it_first_runs(project):
    (project / "studies" / "c.yaml").write_text(TWO_ARMS)
    request = StudyRequest(study="c")
    assert find_stale_stages(request) == ["prepare", "sweep@c", "evaluate@c", "report@c"]
    for _ in range(2):
        track_study(request)
        assert list_tracked() == ["a", "b", "c"]
    assert is_stage_stale("sweep", pin_run(request), on_wait=print)
    track_study(StudyRequest(study="b", profile="smoke"))
    track_study(StudyRequest(study="d", overrides=("seed=1",)))
    assert list_tracked() == ["a", "b", "c"]


@pytest.mark.integration
def test_a_project_that_stays_locked_is_given_up_with_its_holder(project, started):
    holder = start(project, HOLD)
    started.append(holder)
    told = []
    request = StudyRequest(study="a")
    for work, about in ((record_stage, request), (is_stage_stale, PinnedRun(request))):
        with pytest.raises(DvcError, match=rf"\(pid {holder.pid}\).* 0 s are the limit"):
            work("sweep", about, on_wait=told.append, timeout_seconds=0.0)
    assert committed(project) == {"prepare"}


def test_other_errors_of_dvc_are_not_waited_for():
    def refuse():
        raise DvcError("no")

    with pytest.raises(DvcError, match="no"):
        wait_while_locked(refuse, timeout_seconds=1e9, on_wait=pytest.fail)


HOLD_PREPARE = """
import sys
from tasks.study import StudyRequest
from tasks.versioning.stages import hold_stage
with hold_stage("prepare", StudyRequest(study="a"), on_wait=print):
    print("held", flush=True)
    sys.stdin.readline()
    open("first.txt", "w").close()
"""


def test_the_shared_stage_is_held_for_one_run_and_what_reads_none_of_it_is_not(project, started):
    holder = start(project, HOLD_PREPARE)
    started.append(holder)
    assert holder.first_line == "held\n"
    free = (
        ("report", StudyRequest(study="a")),
        ("prepare", StudyRequest(study="a", profile="smoke")),
    )
    for stage, request in free:
        with hold_stage(stage, request, on_wait=pytest.fail) as had_to_wait:
            assert not had_to_wait
    told = []

    def end_holder(line):
        told.append(line)
        holder.stdin.write("end\n")
        holder.stdin.flush()

    # A sweep reads what the held stage writes.
    with hold_stage("sweep", StudyRequest(study="b"), on_wait=end_holder) as had_to_wait:
        assert had_to_wait
        assert Path("first.txt").exists()
    assert str(holder.pid) in told[0]


def test_dvc_repro_leaves_a_stage_alone_that_a_run_works_on(project):
    calls(project)
    winners = project / "results" / "a" / "sweep" / "winners.json"
    with hold_stage("sweep", StudyRequest(study="a"), on_wait=pytest.fail):
        done = subprocess.run(
            [sys.executable, "-m", "dvc", "repro", "sweep@a"],
            cwd=project, env=environment(project), capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode != 0
        assert str(os.getpid()) in done.stderr
        assert winners.exists()
        assert calls(project) == []
    run_dvc(project, "repro", "sweep@a")
    assert calls(project) == ["sweep@a"]


def edit(project):
    """Changes what the sweep of study a reads, and returns what puts it back."""
    files = [project / "studies" / "a.yaml", project / "params.yaml"]
    before = {file: file.read_text() for file in files}
    files[0].write_text("question: what else of a?\n")
    changed = before[files[1]].replace("learning_rate: 2e-3", "learning_rate: 0.5")
    assert changed != before[files[1]]
    files[1].write_text(changed)
    return lambda: [file.write_text(text) for file, text in before.items()]


def test_an_edit_in_mid_run_is_not_recorded_as_the_origin_of_the_results(project):
    request = StudyRequest(study="a")
    text = (project / "studies" / "a.yaml").read_bytes()
    run = pin_run(request)
    # The first comes before the stage begins, and is not the run's either.
    edit(project)
    origin = begin_stage("sweep", run, on_wait=pytest.fail)
    changes = record_stage("sweep", run.request, origin=origin, on_wait=pytest.fail)
    assert changes == ["params.yaml: optimizer.learning_rate", "studies/a.yaml"]
    recorded = yaml.safe_load((project / "dvc.lock").read_text())["stages"]["sweep@a"]
    hashes = {dependency["path"]: dependency["md5"] for dependency in recorded["deps"]}
    assert hashes["studies/a.yaml"] == hashlib.md5(text, usedforsecurity=False).hexdigest()
    assert recorded["params"]["params.yaml"]["optimizer"]["learning_rate"] == 0.002
    assert not is_stage_stale("sweep", run, on_wait=pytest.fail)
    assert is_stage_stale("sweep", pin_run(request), on_wait=pytest.fail)
    assert "sweep@a" in stale_stages(project)
    said = describe_change("sweep", request, changes)
    assert said.startswith("sweep@a is stale: params.yaml: optimizer.learning_rate, studies/a.yaml")
    with pytest.raises(StageChanged, match=r"sweep@a is stale: .*studies/a\.yaml changed while"):
        check_origin("sweep", request, origin)


def test_a_reverted_edit_leaves_the_stage_up_to_date(project):
    request = StudyRequest(study="a")
    run = pin_run(request)
    origin = begin_stage("sweep", run, on_wait=pytest.fail)
    revert = edit(project)
    assert record_stage("sweep", run.request, origin=origin, on_wait=pytest.fail) != []
    assert "sweep@a" in stale_stages(project)
    revert()
    assert "sweep@a" not in stale_stages(project)
    assert not is_stage_stale("sweep", pin_run(request), on_wait=pytest.fail)
    check_origin("sweep", request, origin)


def test_a_run_uses_its_files_as_they_were_when_it_began(project):
    study, params = project / "studies" / "a.yaml", project / "params.yaml"
    study.write_text(TWO_ARMS)
    run = pin_run(StudyRequest(study="a"))
    study.write_text(TWO_ARMS.replace("seeds: [0]", "seeds: [1, 2]"))
    params.write_text(params.read_text().replace("learning_rate: 2e-3", "learning_rate: 0.5"))
    seen = [load_context(request) for request in (run.request, StudyRequest(study="a"))]
    assert [list(context.study.definition.seeds) for context in seen] == [[0], [1, 2]]
    assert [context.project.trial.optimizer.learning_rate for context in seen] == [0.002, 0.5]


ENTRY = b'{"raw": "r", "seeds": "s"}'


@pytest.mark.parametrize(
    ("content", "problem", "remedy"),
    [
        (b"{", "must be JSON", "git checkout -- studies/tracked.json"),
        (b"\xff", "must be JSON", "git checkout -- studies/tracked.json"),
        (b'{"studies": ["a"]}', "must be a mapping of studies", "Write it as"),
        (b'{"studies": {"../x": %s}}' % ENTRY, "Got '../x'", "Remove it"),
        (b'{"studies": {"gone": %s}}' % ENTRY, "no studies/gone.yaml", "Bring the file back"),
        (b'{"studies": {"a": {"raw": 3}}}', "studies.a must be", '{"raw": "studies/a.yaml", '),
        (b'{"studies": {"a": {"raw": "r"}}}', "studies.a must be", '"seeds": "studies/a.yaml"}'),
        (None, "does not exist", "git checkout -- studies/tracked.json"),
    ],
)
def test_garbage_in_the_list_of_studies_is_reported_with_its_file_and_a_remedy(
    tmp_path, content, problem, remedy
):
    (tmp_path / "dvc.yaml").touch()
    (tmp_path / "studies").mkdir()
    (tmp_path / "studies" / "a.yaml").touch()
    if content is not None:
        (tmp_path / TRACKED_FILE).write_bytes(content)
    with pytest.raises(ConfigError) as caught:
        list_tracked(tmp_path)
    assert caught.value.source == str(tmp_path / TRACKED_FILE)
    (said,) = caught.value.problems
    assert problem in said
    assert remedy in said


def test_outputs_that_are_gone_are_not_recorded(project):
    run = pin_run(StudyRequest(study="a"))
    origin = begin_stage("sweep", run, on_wait=pytest.fail)
    shutil.rmtree(project / "results" / "a" / "sweep")
    with pytest.raises(DvcError, match=r"wrote results/a/sweep, and it is gone.*same command"):
        record_stage("sweep", run.request, origin=origin, on_wait=pytest.fail)
    assert committed(project) == {"prepare"}


def test_a_cache_that_is_deleted_during_a_run_is_filled_again_by_the_next_one(project):
    request = StudyRequest(study="a")
    run = pin_run(request)
    origin = begin_stage("sweep", run, on_wait=pytest.fail)
    shutil.rmtree(project / ".dvc" / "cache")
    assert record_stage("sweep", request, origin=origin, on_wait=pytest.fail) == []
    assert committed(project) == {"prepare", "sweep@a"}
    # The outputs of prepare are no longer in the cache, so that the next run has to do it.
    assert find_stale_stages(request)[0] == "prepare"
    for stage in ("prepare", "sweep", "evaluate"):
        origin = begin_stage(stage, pin_run(request), on_wait=pytest.fail)
        record_stage(stage, request, origin=origin, on_wait=pytest.fail)
    assert find_stale_stages(request) == ["report@a"]
    prepared = project / "data" / "prepared"
    before = {path: path.read_bytes() for path in prepared.rglob("*") if path.is_file()}
    shutil.rmtree(prepared / "glyphs")
    run_dvc(project, "checkout", "prepare")
    after = {path: path.read_bytes() for path in prepared.rglob("*") if path.is_file()}
    assert after == before


def test_changed_images_of_a_studys_own_dataset_make_its_stages_stale(project):
    own = "fixed: {data.name: folder, data.raw: pictures, data.alias: own}\n"
    (project / "studies" / "c.yaml").write_text(TWO_ARMS + own)
    image = project / "pictures" / "wren" / "1.png"
    image.parent.mkdir(parents=True)
    image.write_text("picture")
    request = StudyRequest(study="c")
    track_study(request)
    for stage in ("sweep", "evaluate", "report"):
        run_stage(project, f"{stage}@c")
        record_stage(stage, request, on_wait=pytest.fail)
    assert find_stale_stages(request) == []
    image.write_text("another picture")
    assert stale_stages(project, ["report@c"]) == ["sweep@c", "evaluate@c"]
    assert is_stage_stale("sweep", pin_run(request), on_wait=pytest.fail)
