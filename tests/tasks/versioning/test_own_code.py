"""dml run notices an edit of own code, which dvc.yaml does not name."""

import json
import shutil
import sys
from pathlib import Path

import pytest
import yaml

from dml_core import own_code
from dml_core.studies.own_code_checks import hash_own_code
from tasks.study import StudyRequest, load_context
from tasks.versioning.stages import _has_other_own_code

ROOT = Path(__file__).parents[3]


@pytest.fixture
def project(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    shutil.copyfile(ROOT / "params.yaml", "params.yaml")
    Path("studies").mkdir()
    for name, loss in (("own", "python:own_loss_of_stages:Loss"), ("plain", "triplet")):
        study = {"question": "Which?", "arms": {"a": {"loss.name": loss}}, "seeds": [0]}
        Path("studies", f"{name}.yaml").write_text(yaml.safe_dump(study))
    Path("own_loss_of_stages.py").write_text("Loss = dict\n")
    own_code._hash_at.cache_clear()
    return tmp_path


def test_a_sweep_is_stale_after_an_edit_of_the_code_that_its_study_names(project):
    own, plain = StudyRequest(study="own"), StudyRequest(study="plain")
    assert _has_other_own_code(own)
    assert not _has_other_own_code(plain)
    context = load_context(own)
    context.sweep_folder.mkdir(parents=True)
    recorded = {"own_code": hash_own_code(context.study)}
    (context.sweep_folder / "sweep.json").write_text(json.dumps(recorded))
    assert not _has_other_own_code(own)
    Path("own_loss_of_stages.py").write_text("Loss = list\n")
    # As in the next process.
    own_code._hash_at.cache_clear()
    assert _has_other_own_code(own)
