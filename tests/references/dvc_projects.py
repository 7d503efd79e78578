"""Small DVC projects in git repositories, with this project's dvc.yaml and a stub of `dml stage`.

The stub is the one stand-in: what is under test is what DVC makes of dvc.yaml, and real stages
would take minutes. It writes the outputs that the stages of dvc.yaml name, as functions of what
they read.
"""

import json
import os
import shutil
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml
from dvc.repo import lock_repo

from tasks.versioning.repo import _ordered
from tasks.versioning.session import open_repo
from tasks.versioning.stages import TRACKED_FILE

ROOT = Path(__file__).parents[2]
COPIED = ("dvc.yaml", "params.yaml", ".dvcignore", ".gitignore", ".dvc/config", ".dvc/.gitignore")

STUB = '''#!{python}
"""Stands for `dml stage STAGE [STUDY]`: writes small outputs made from the inputs."""
import hashlib, json, sys
from pathlib import Path

stage, study = sys.argv[2], (sys.argv[3] if len(sys.argv) > 3 else "")
with Path("calls.txt").open("a") as calls:
    calls.write(f"{{stage}}@{{study}}\\n" if study else f"{{stage}}\\n")
params = Path("params.yaml").read_text()
text = params + (Path(f"studies/{{study}}.yaml").read_text() if study else "")
score = int(hashlib.sha256(text.encode()).hexdigest()[:6], 16) / 16**6

def write(path, content):
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content)

if stage == "prepare":
    for name in ("development/images.bin", "test/images.bin", "splits.json", "dataset.json"):
        write(f"data/prepared/glyphs/{{name}}", name)
elif stage == "sweep":
    write(f"results/{{study}}/sweep/winners.json", json.dumps({{"score": score}}))
elif stage == "evaluate":
    write(f"results/{{study}}/evaluate/scores.json", json.dumps({{"score": score}}))
elif stage == "report":
    for name in ("answer.json", "index.html", "summary.json"):
        write(f"reports/{{study}}/{{name}}", "{{}}")
    arms = {{"small": score, "large": score / 2}}
    metrics = {{arm: {{"map_at_r": value}} for arm, value in arms.items()}}
    write(f"reports/{{study}}/metrics.json", json.dumps(metrics))
    rows = "".join(f"{{arm}},0,{{value}}\\n" for arm, value in arms.items())
    write(f"reports/{{study}}/plots/scores.csv", "arm,seed,map_at_r\\n" + rows)
    drawn = "".join(f"{{arm}},{{value}},{{value}}\\n" for arm, value in arms.items())
    write(f"reports/{{study}}/figures/figure.csv", "series,x,mean\\n" + drawn)
    write(f"reports/{{study}}/figures/figure.svg", "<svg xmlns='http://www.w3.org/2000/svg'/>")
else:
    sys.exit(f"no stage {{stage}}")
'''


def make_project(folder: Path, studies: tuple[str, ...] = ("a", "b")) -> Path:
    """Makes a committed git and DVC project with this project's dvc.yaml and some studies."""
    for name in COPIED:
        target = folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / name, target)
    _set_studies(folder, studies)
    _copy_dependencies(folder)
    stub = folder / ".bin" / "dml"
    stub.parent.mkdir()
    stub.write_text(STUB.format(python=sys.executable))
    stub.chmod(stub.stat().st_mode | stat.S_IXUSR)
    with (folder / ".gitignore").open("a") as ignored:
        ignored.write("/.bin/\n/calls.txt\n")
    make_git(folder)
    return folder


def list_definitions() -> dict[str, dict[str, Any]]:
    """Returns the stages of dvc.yaml by name; those of a study as its template has them."""
    stages = yaml.safe_load((ROOT / "dvc.yaml").read_text(encoding="utf-8"))["stages"]
    return {name: stage.get("do", stage) for name, stage in stages.items()}


def list_stages(folder: Path, targets: tuple[str, ...] = ()) -> list[str]:
    """Returns the names of the targets and of all stages before them, in execution order."""
    with open_repo(folder) as repo, lock_repo(repo):
        return [stage.name for stage in _ordered(repo, targets)]


def make_git(folder: Path) -> None:
    """Turns a folder into a git repository with one commit of everything."""
    run(folder, "git", "init", "--quiet", "--initial-branch", "main")
    commit_git(folder, "start")


def commit_git(folder: Path, message: str) -> None:
    """Commits everything that git does not ignore."""
    run(folder, "git", "add", "--all")
    run(folder, "git", "commit", "--quiet", "--allow-empty", "--message", message)


def run(folder: Path, *command: str) -> str:
    """Runs a command in a project, the stub of dml first on the path, and returns its output."""
    done = subprocess.run(
        command, cwd=folder, env=environment(folder), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def run_dvc(folder: Path, *arguments: str) -> str:
    """Runs dvc with arguments in a project and returns its output."""
    return run(folder, sys.executable, "-m", "dvc", *arguments)


def environment(folder: Path) -> dict[str, str]:
    """The environment of a project's processes: nobody's git settings, no usage reports."""
    who = {
        f"GIT_{role}_{what}": value
        for role in ("AUTHOR", "COMMITTER")
        for what, value in (("NAME", "test"), ("EMAIL", "test@localhost"))
    }
    path = f"{folder / '.bin'}{os.pathsep}{os.environ['PATH']}"
    quiet = {"DVC_NO_ANALYTICS": "1", "DVC_TEST": "1", "GIT_CONFIG_GLOBAL": os.devnull}
    return {**os.environ, **who, **quiet, "PATH": path}


def run_stage(folder: Path, name: str) -> None:
    """Runs a stage's stub outside DVC, as `dml run` does."""
    stage, _, study = name.partition("@")
    run(folder, "dml", "stage", *filter(None, (stage, study)))


def calls(folder: Path) -> list[str]:
    """Returns the stages that the stub was called for since the last look."""
    file = folder / "calls.txt"
    names = file.read_text().split() if file.exists() else []
    file.unlink(missing_ok=True)
    return names


def _set_studies(folder: Path, studies: tuple[str, ...]) -> None:
    (folder / "studies").mkdir()
    itself = {name: f"studies/{name}.yaml" for name in studies}
    entries = {name: {"raw": path, "seeds": path} for name, path in itself.items()}
    (folder / TRACKED_FILE).write_text(json.dumps({"studies": entries}))
    for name in studies:
        (folder / "studies" / f"{name}.yaml").write_text(f"question: what of {name}?\n")


def _copy_dependencies(folder: Path) -> None:
    """Copies the code that the stages depend on, and the empty folder for raw data."""
    for stage in list_definitions().values():
        for name in stage["deps"]:
            if "$" in name or (folder / name).exists():
                continue
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            if (ROOT / name).is_dir():
                ignored = shutil.ignore_patterns("__pycache__")
                shutil.copytree(ROOT / name, folder / name, ignore=ignored)
            else:
                shutil.copyfile(ROOT / name, folder / name)
    (folder / "data" / "raw").mkdir(parents=True)
    shutil.copyfile(ROOT / "data" / "raw" / "README.md", folder / "data" / "raw" / "README.md")
