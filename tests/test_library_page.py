"""The examples of docs/library.md run as they stand on the page."""

import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from dml_core.config import ConfigError
from dml_core.training.determinism import limited_threads
from tasks.study import StudyRequest
from tests.references.made_up_results import make_results

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / "docs" / "library.md").read_text(encoding="utf-8")
TRAINING, EVALUATION, RESULTS = re.findall(r"```python\n(.*?)```", TEXT, flags=re.DOTALL)


def run(example: str) -> dict[str, Any]:
    """Runs an example and returns its variables."""
    names: dict[str, Any] = {}
    # Threads that wait for each other on a busy machine take several times as long.
    with limited_threads(1):
        exec(compile(example, "docs/library.md", "exec"), names)  # noqa: S102 - our own page
    return names


def test_the_training_loop_learns(capsys):
    names = run(TRAINING)
    assert names["loss"].proxies.shape == (10, 32)
    assert names["learned"]["map_at_r"] > names["pixels"]["map_at_r"] + 0.2
    assert f"{names['learned']['map_at_r']:.2f} of embeddings" in capsys.readouterr().out


def test_embeddings_from_elsewhere_are_scored():
    names = run(EVALUATION)
    assert 0.9 < names["scores"]["recall_at_1"] <= names["scores"]["recall_at_10"] <= 1
    assert 0 < names["scores"]["map_at_r"] < names["scores"]["recall_at_1"]
    assert names["searched"]["num_queries"] == 200
    assert "nmi" not in names["searched"]


def test_the_results_of_a_study_are_a_table(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    shutil.copyfile(ROOT / "params.yaml", "params.yaml")
    Path("studies").mkdir()
    shutil.copyfile(ROOT / "studies" / "main.yaml", "studies/main.yaml")
    context = make_results(StudyRequest(study="main"))
    names = run(RESULTS)
    arms, seeds = len(context.study.arms), len(context.study.seeds)
    assert len(names["results"]) == len(names["trials"]) == arms * seeds
    assert all(arm.name in capsys.readouterr().out for arm in context.study.arms[:1])


def test_the_shown_message_is_the_one_that_is_raised():
    ((call, shown),) = re.findall(r">>> (.*)\nConfigError: (.*?)```", TEXT, flags=re.DOTALL)
    with pytest.raises(ConfigError) as caught:
        run(f"from dml_core.losses import ProxyAnchorLoss\n{call}")
    assert str(caught.value) == shown.rstrip("\n")
