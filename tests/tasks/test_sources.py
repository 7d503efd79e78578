"""The sources of a run: real processes that pin, are edited under, and start others."""

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tasks import sources
from tasks.sources import (
    PACKAGES,
    VARIABLE,
    SourcesChanging,
    choose_tree,
    find_own_code,
    find_tree,
    imported_tree,
    is_pinned,
    provide_copy,
)
from tasks.sweep.cluster import make_runtime_env

ROOT = Path(__file__).parents[2]
DML = Path(sys.executable).with_name("dml")


def make_tree(folder, *, content=""):
    """Makes a tree of the packages that holds hardly anything but tasks/sources.py."""
    for package in PACKAGES:
        (folder / package).mkdir(parents=True)
        (folder / package / "__init__.py").touch()
    for name in ("tasks/sources.py", "dml_core/own_code.py"):
        shutil.copy(ROOT / name, folder / name)
    (folder / "dml_core/state.py").write_text(f"STATE = {content!r}\n")
    return folder


def make_environment(**variables):
    """Returns this environment without what a test run of this project adds to it."""
    left_out = {VARIABLE, "PYTHONPATH"}
    return {**{k: v for k, v in os.environ.items() if k not in left_out}, **variables}


def run_python(code, folder, **variables):
    command, env = [sys.executable, "-c", code], make_environment(**variables)
    done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


RUN = """
import multiprocessing, os, subprocess, sys
from pathlib import Path
from tasks.sources import pin_sources

def tell():
    from dml_core.state import STATE
    print(STATE, flush=True)

if __name__ == "__main__":
    project = Path.cwd()
    copy = pin_sources()
    # The folder is edited, and this process goes elsewhere in it.
    (project / "dml_core/state.py").write_text("STATE = 'edited'")
    (project / "dml_core/late.py").unlink()
    tell()
    from dml_core.late import STATE
    print(STATE, flush=True)
    child = multiprocessing.get_context("spawn").Process(target=tell)
    child.start()
    child.join()
    code = "from dml_core.late import STATE; from tasks.sources import is_pinned, imported_tree;"
    code += "print(STATE, is_pinned(), imported_tree())"
    subprocess.run([sys.executable, "-P", "-c", code], check=True)
    print(copy)
"""


def test_every_process_of_a_run_has_the_sources_of_its_start(tmp_path):
    project = make_tree(tmp_path / "project", content="start")
    (project / "dml_core/late.py").write_text("STATE = 'late'\n")
    (tmp_path / "run.py").write_text(RUN)
    done = subprocess.run(
        [sys.executable, str(tmp_path / "run.py")],
        cwd=project,
        env=make_environment(PYTHONPATH=str(project)),
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    here, late, child, command, pinned, tree, copy = done.stdout.split()
    assert (here, late, child, command, pinned) == ("start", "late", "start", "late", "True")
    assert tree == copy
    assert Path(copy).parent == project / ".dml/sources"
    # The next run has the sources of its own start.
    code = "from tasks.sources import pin_sources; print(pin_sources());"
    code += "from dml_core.state import STATE; print(STATE)"
    newer, state = run_python(code, project, PYTHONPATH=str(project))
    assert (newer != copy, state) == (True, "edited")


@pytest.mark.slow
def test_a_command_in_another_clone_uses_that_clones_sources(tmp_path):
    clone = tmp_path / "clone"
    for package in PACKAGES:
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / package, clone / package, ignore=ignored)
    (clone / ".git").mkdir()
    shutil.copy(ROOT / "params.yaml", clone / "params.yaml")
    (clone / "inner").mkdir()
    cli = clone / "flows/cli.py"
    marked = cli.read_text().replace('help="Ablations for', 'help="MARKED ablations for')
    cli.write_text(marked)
    assert "MARKED" in marked
    with open(clone / "flows/commands/train.py", "a") as file:
        file.write("\nprint('IMPORTED', __file__)\n")

    def run(folder, *arguments):
        command, env = [str(DML), *arguments], make_environment()
        return subprocess.run(
            command, cwd=folder, env=env, capture_output=True, text=True, timeout=120
        )

    for folder, is_marked in ((clone, True), (clone / "inner", True), (tmp_path, False)):
        told = run(folder, "--help")
        assert told.returncode == 0, told.stderr
        assert ("MARKED" in told.stdout) == is_marked, folder
    assert not (clone / ".dml").exists()
    # A command that computes uses a copy of the clone, not the clone itself.
    refused = run(clone, "train", "--set", "no.such=1")
    assert refused.returncode == 2, refused.stderr
    (copy,) = (path for path in (clone / ".dml/sources").iterdir() if path.is_dir())
    assert f"IMPORTED {copy / 'flows/commands/train.py'}" in refused.stdout.splitlines()
    assert (copy / "flows/cli.py").read_text() == marked


def test_a_folder_belongs_to_its_own_tree_or_to_that_of_its_repository(tmp_path, monkeypatch):
    tree = make_tree(tmp_path / "clone")
    inner = tree / "studies/mine"
    inner.mkdir(parents=True)
    assert find_tree(tree) == tree
    assert find_tree(inner) is None
    (tree / ".git").mkdir()
    assert find_tree(inner) == tree
    # A repository within another one is not of it.
    (inner / ".git").touch()
    assert find_tree(inner) is None
    (tree / "flows/__init__.py").unlink()
    assert find_tree(tree) is None
    monkeypatch.delenv(VARIABLE, raising=False)
    monkeypatch.chdir(tree)
    assert choose_tree() == imported_tree() == ROOT
    (tree / "flows/__init__.py").touch()
    assert choose_tree() == tree


def test_own_code_that_the_project_names_is_copied_as_it_was(tmp_path, monkeypatch):
    tree = make_tree(tmp_path / "project")
    monkeypatch.chdir(tree)
    monkeypatch.setattr("sys.argv", ["dml", "--set", "model.backbone=python:nets:Net"])
    Path("studies").mkdir()
    Path("studies/a.yaml").write_text("arms: {a: {loss.name: 'python:mine.losses:Loss'}}")
    Path("mine").mkdir()
    for name in ("mine/losses.py", "mine/other.py", "nets.py", "unnamed.py"):
        Path(name).write_text("FIRST = 1\n")
    Path("mine/data.bin").write_text("")
    copy = provide_copy(tree, tmp_path / "keep", own=find_own_code(Path()))
    for name in ("mine/losses.py", "mine/other.py", "nets.py"):
        Path(name).write_text("FIRST = 2\n")
        assert (copy / name).read_text() == "FIRST = 1\n"
    assert not (copy / "unnamed.py").exists()
    assert not (copy / "mine/data.bin").exists()
    assert provide_copy(tree, tmp_path / "keep", own=find_own_code(Path())) != copy


def test_workers_get_the_copy_as_their_working_folder_once_the_run_is_pinned(monkeypatch):
    monkeypatch.delenv(VARIABLE, raising=False)
    assert not is_pinned()
    assert make_runtime_env()["py_modules"] == [str(ROOT / name) for name in PACKAGES]
    assert "working_dir" not in make_runtime_env()
    monkeypatch.setenv(VARIABLE, "/another/copy")
    assert not is_pinned()
    monkeypatch.setenv(VARIABLE, str(ROOT))
    assert is_pinned()
    assert make_runtime_env() == {"working_dir": str(ROOT)}


HOLD = """
import sys
from pathlib import Path
from tasks.sources import provide_copy
print(provide_copy(Path(sys.argv[1]), Path(sys.argv[2])), flush=True)
sys.stdin.read()
"""


def hold(tree, keep):
    """Starts a process that holds a copy; returns it and the copy's folder."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tree), str(keep)],
        cwd=ROOT,
        env=make_environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    return process, Path(process.stdout.readline().strip())


def list_copies(keep):
    return {path for path in keep.iterdir() if path.is_dir()}


def test_a_copy_is_held_while_a_run_uses_it_and_removed_by_the_next(tmp_path):
    tree, keep = make_tree(tmp_path / "tree", content="first"), tmp_path / "keep"
    first, old = hold(tree, keep)
    again, same = hold(tree, keep)
    assert same == old
    (tree / "dml_core/state.py").write_text("STATE = 'second'\n")
    second, new = hold(tree, keep)
    assert new != old
    # The first run's copy is as it was, for as long as one process uses it.
    assert "first" in (old / "dml_core/state.py").read_text()
    first.kill()
    first.communicate()
    third, _ = hold(tree, keep)
    assert list_copies(keep) == {old, new}
    again.send_signal(signal.SIGKILL)
    again.communicate()
    fourth, _ = hold(tree, keep)
    assert list_copies(keep) == {new}
    assert not old.with_name(f"{old.name}.lock").exists()
    for process in (second, third, fourth):
        process.communicate("")


def test_a_half_written_copy_is_never_used(tmp_path, monkeypatch):
    tree, keep = make_tree(tmp_path / "tree", content="whole"), tmp_path / "keep"
    monkeypatch.setattr(sources, "_hold", lambda copy: None)
    monkeypatch.setattr(sources, "_remove_unused", lambda keep: None)

    def die(*_, **__):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(sources.compileall, "compile_dir", die)
        with pytest.raises(KeyboardInterrupt):
            provide_copy(tree, keep)
    (partial,) = list_copies(keep)
    assert partial.name.endswith(".partial")
    (partial / "dml_core/left.py").touch()
    copy = provide_copy(tree, keep)
    assert list_copies(keep) == {copy}
    names = {p.relative_to(copy).as_posix() for p in copy.rglob("*.py")}
    assert names == {p.relative_to(tree).as_posix() for p in tree.rglob("*.py")}
    assert list((copy / "dml_core/__pycache__").glob("state.*.pyc"))


def test_each_state_of_the_sources_has_its_copy(tmp_path, monkeypatch):
    tree, keep = make_tree(tmp_path / "tree", content="one"), tmp_path / "keep"
    monkeypatch.setattr(sources, "_remove_unused", lambda keep: None)
    first = provide_copy(tree, keep)
    (tree / "tasks/__pycache__").mkdir()
    (tree / "tasks/__pycache__/x.pyc").write_bytes(b"x")
    (tree / "notes.txt").write_text("no source")
    assert provide_copy(tree, keep) == first
    (tree / "flows/page.html").write_text("<p>")
    with_page = provide_copy(tree, keep)
    (tree / "flows/page.html").rename(tree / "flows/other.html")
    renamed = provide_copy(tree, keep)
    assert len({first, with_page, renamed}) == 3
    assert (with_page / "flows/page.html").read_text() == "<p>"
    assert not (renamed / "flows/page.html").exists()


def change_while_read(monkeypatch, tree, *, times):
    """Lets a file of the tree change after each of the first readings."""
    path, read, readings = tree / "dml_core/state.py", Path.read_bytes, []

    def read_and_change(self):
        data = read(self)
        if self == path:
            readings.append(1)
            if len(readings) <= times:
                path.write_text(f"STATE = '{'x' * len(readings)}'\n")
        return data

    monkeypatch.setattr(Path, "read_bytes", read_and_change)


def test_sources_that_change_while_they_are_copied_are_refused(tmp_path, monkeypatch):
    tree, keep = make_tree(tmp_path / "tree"), tmp_path / "keep"
    change_while_read(monkeypatch, tree, times=1000)
    with pytest.raises(SourcesChanging, match="must not change while a run copies them"):
        provide_copy(tree, keep)
    assert not keep.exists()


def test_a_short_change_of_the_sources_is_waited_for(tmp_path, monkeypatch):
    tree = make_tree(tmp_path / "tree")
    change_while_read(monkeypatch, tree, times=2)
    copy = provide_copy(tree, tmp_path / "keep")
    assert (copy / "dml_core/state.py").read_text() == "STATE = 'xx'\n"
