"""dml ask, from a folder of drawn photographs to a model that works without this project."""

import json
import re
import subprocess
import sys

import numpy as np
import pytest

from tests.flows.test_pipeline import run
from tests.references.drawn_flowers import write_flowers
from tests.references.tiny_projects import make_project
from tests.tasks.export.test_formats import OWN, RUN, read_lines

pytestmark = [pytest.mark.integration, pytest.mark.slow]

ASK = ("dml", "ask", "our 'best' photos", "--name", "flowers", "--most-seeds", "4",
       "--set", "model.width=4")  # fmt: skip
MOST_BUDGETS = 5
NEIGHBORS = """
import json
import numpy as np
from dml_core.data.prepared import open_test
from dml_core.config.loading import resolve_trial_config
from pathlib import Path
folder = Path("results/flowers/evaluate")
winner = next(Path("results/flowers/sweep/winners").iterdir())
config = resolve_trial_config(json.loads((winner / "config.json").read_text()))
images, _ = open_test(config.data)
print(json.dumps(list(images.paths)))
"""


@pytest.fixture(scope="module")
def asked(tmp_path_factory):
    """A project in which a folder of drawn flowers was asked about."""
    folder = make_project(tmp_path_factory.mktemp("ask") / "project", {})
    write_flowers(folder / "our 'best' photos", num_images=9, sizes_px=(40, 44, 48))
    (folder / "our 'best' photos" / "flower-00" / "phone.heic").write_bytes(b"\0\0\0\x18ftypheic")
    printed = ""
    # A machine with other work may not finish within its minutes; the same command resumes.
    for _ in range(MOST_BUDGETS):
        done = run(folder, *ASK, "--minutes", "4", timeout=900)
        printed += done.stdout
        if "not enough time for an answer" not in done.stderr:
            break
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return folder, printed


def test_one_command_says_what_it_found_decided_and_recommends(asked):
    folder, printed = asked
    assert re.search(r"classes +16\n", printed)
    assert "heic" in printed.lower()
    text = (folder / "studies" / "flowers.yaml").read_text()
    assert text.startswith("# Written by: dml ask ")
    assert "Recipe: small images" in text
    assert re.search(r"studies/flowers.yaml: [2-4] arms", printed)
    answer = json.loads((folder / "reports" / "flowers" / "answer.json").read_text())
    assert answer["recommendation"].split(":")[0] in printed
    assert "no training" in printed
    for command in ("dml open flowers", "dml export flowers", "dml index flowers FOLDER"):
        assert command in printed
    assert "of 4 minutes" in printed


def list_ended(folder):
    """Returns when each trial ended, by the path of its result."""
    return {path: path.stat().st_mtime_ns for path in folder.glob("results/.trials/*/result.json")}


def test_the_same_command_trains_no_trial_twice_and_has_its_answer_without_time(asked):
    folder, _ = asked
    before = list_ended(folder)
    assert before
    # As if it had been killed in a look whose seeds the next budget has no time for.
    plan = folder / "studies" / "flowers.seeds.json"
    text = plan.read_text()
    kept = json.loads(text)
    more = {arm: [*range(2, 9)] for arm in ("multi_similarity", "proxy_anchor")}
    plan.write_text(json.dumps({**kept, "seeds": {**kept["seeds"], **more}}))
    again = run(folder, *ASK, "--minutes", "0.1", timeout=900)
    assert again.returncode == 0, again.stderr[-3000:]
    assert "it resumes" in again.stdout
    assert "the budget ended while seeds were added, so the answer is of" in again.stderr
    assert "no training" in again.stdout
    assert plan.read_text() == text
    assert list_ended(folder) == before
    other = run(folder, "dml", "ask", "our 'best' photos", "--name", "flowers", "--question", "dim")
    assert other.returncode == 2
    assert "studies/flowers.yaml is there already" in other.stderr


def test_the_exported_model_finds_the_evaluations_neighbours_without_this_project(asked, tmp_path):
    folder, _ = asked
    exported = run(folder, "dml", "export", "flowers", "--output", str(tmp_path / "model"))
    assert exported.returncode == 0, exported.stderr[-3000:]
    listed = run(folder, sys.executable, "-c", NEIGHBORS)
    paths = [str(folder / "our 'best' photos" / path) for path in json.loads(listed.stdout)]
    lines = read_lines(tmp_path / "model" / "README.md").replace('["photo.jpg"]', repr(paths))
    (tmp_path / "lines.py").write_text(lines)
    done = subprocess.run(
        [sys.executable, "-c", RUN, str(tmp_path / "lines.py"), str(tmp_path / "e.npy"),
         json.dumps(OWN)],
        cwd=tmp_path / "model", capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    given = np.load(tmp_path / "e.npy")
    labels = np.array([path.rsplit("/", 2)[1] for path in paths])
    similar = given @ given.T
    np.fill_diagonal(similar, -np.inf)
    recall = float((labels[similar.argmax(axis=1)] == labels).mean())
    scores = json.loads((folder / "results" / "flowers" / "evaluate" / "scores.json").read_text())
    known = [
        each["recall_at_1"] for by_seed in scores["scores"].values() for each in by_seed.values()
    ]
    # One of the evaluated models, to the last query.
    assert min(abs(recall - score) for score in known) < 1e-6
