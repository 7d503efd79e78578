"""Which model of a study is taken: the recommended arm's, with its best seed on validation."""

import contextlib
import json
import shutil

import pytest

from dml_core.trials.journal import read_epochs, selected_score
from tasks.export.winner import choose_model
from tasks.study import StudyRequest, load_context
from tests.references.answered_projects import REQUEST


@pytest.fixture
def project(answered_project, tmp_path):
    """A copy of the answered project, as the working directory."""
    folder = tmp_path / "project"
    shutil.copytree(answered_project, folder)
    with contextlib.chdir(folder):
        yield folder


def test_the_default_is_the_recommended_arm_and_its_best_seed_on_validation(project):
    chosen = choose_model(load_context(REQUEST))
    answer = json.loads((project / "reports/flowers/answer.json").read_text())
    assert chosen.winner.arm == answer["best_arm"]
    assert chosen.is_recommended
    folders = sorted((project / "results/flowers/sweep/winners").glob(f"{chosen.winner.arm}-*"))
    config = chosen.winner.load_config()
    scores = {folder.name: selected_score(read_epochs(folder), config) for folder in folders}
    assert len(scores) == 2
    assert chosen.name == max(scores, key=scores.get)
    # The other seed wins once it has the better validation score.
    other = next(name for name in scores if name != chosen.name)
    file = project / "results/flowers/sweep/winners" / other / "epochs.jsonl"
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    lines[-1]["validation"][config.selection_metric] = 2.0
    file.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    assert choose_model(load_context(REQUEST)).name == other


def test_an_arm_and_a_seed_can_be_named(project):
    context = load_context(REQUEST)
    chosen = choose_model(context, arm="anchor", seed=1)
    assert (chosen.name, chosen.is_recommended) == ("anchor-seed1", False)
    with pytest.raises(ValueError, match=r"no arm 'ancor'\. Did you mean 'anchor'\?"):
        choose_model(context, arm="ancor")
    with pytest.raises(ValueError, match=r"'anchor' was not trained with seed 7\. Its seeds: 0, 1"):
        choose_model(context, arm="anchor", seed=7)


def test_a_study_without_results_or_answer_says_what_to_run(project):
    shutil.rmtree(project / "reports")
    with pytest.raises(ValueError, match=r"has no answer yet.*--arm: anchor, triplet"):
        choose_model(load_context(REQUEST))
    assert choose_model(load_context(REQUEST), arm="anchor").name.startswith("anchor-seed")
    for folder in (project / "results/flowers/sweep/winners").glob("anchor-*"):
        shutil.rmtree(folder)
    with pytest.raises(ValueError, match=r"'anchor' .* has no trained model.*: triplet\."):
        choose_model(load_context(REQUEST), arm="anchor")
    shutil.rmtree(project / "results")
    request = StudyRequest(study="flowers", overrides=("training.epochs=6",))
    with pytest.raises(ValueError, match=r"no trained models yet\. Run: dml run flowers --set "):
        choose_model(load_context(request))
