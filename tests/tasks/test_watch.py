"""A study's results held against the accepted one, from its files to the words."""

import json
from pathlib import Path

import pytest

from dml_core.analysis.history import history_file, read_history
from tasks.study import StudyRequest, load_context
from tasks.watch import ScoreDrop, check_for_drops, watch
from tests.references.made_up_results import make_results

STUDY = """
question: Which of two losses?
arms: {anchor: {loss.name: proxy_anchor}, triplet: {loss.name: triplet}}
seeds: [0, 1, 2]
"""


@pytest.fixture
def request_(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "params.yaml").write_text("")
    (tmp_path / "studies").mkdir()
    (tmp_path / "studies" / "asked.yaml").write_text(STUDY)
    request = StudyRequest(study="asked")
    make_results(request)
    return request


def shift(request, by):
    """Moves every test score, as another version of the code would."""
    path = load_context(request).evaluate_folder / "scores.json"
    content = json.loads(path.read_text())
    for by_seed in content["scores"].values():
        for seed, scores in by_seed.items():
            scores["recall_at_1"] += by + 0.001 * int(seed)
    path.write_text(json.dumps(content))


def look(request):
    return watch(load_context(request), promote=False)


def test_the_first_result_is_accepted_and_the_same_one_again_is_no_change(request_):
    first = look(request_)
    assert first.verdict == "first"
    assert "asked: the first result on data da7a; it is accepted." in first.headline
    again = look(request_)
    assert again.verdict == "no change"
    (noted,) = read_history(history_file(Path("results"), "asked"))
    assert noted.accepted
    assert noted.metric == "test.recall_at_1"
    assert sorted(noted.scores["anchor"]) == [0, 1, 2]


def test_a_drop_fails_with_the_numbers_until_it_is_fixed(request_):
    look(request_)
    shift(request_, -0.05)
    dropped = look(request_)
    # -5.0, -4.9 and -4.8 points: mean -4.9, deviation 0.1, reach 4.303 * 0.1 / sqrt(3) = 0.25.
    assert dropped.headline.startswith(
        "asked dropped: the champion changed by -4.9 points (-5.1 to -4.7, 3 seeds)"
    )
    assert "dml run asked --promote" in dropped.headline
    assert "| triplet (champion) |" in dropped.markdown
    with pytest.raises(ScoreDrop, match="asked dropped"):
        check_for_drops([dropped])
    # The accepted one stays, so that the same result is a drop the next night too.
    assert look(request_).has_dropped
    shift(request_, 0.048)
    mended = look(request_)
    assert mended.verdict == "no change"
    check_for_drops([mended])
    noted = read_history(history_file(Path("results"), "asked"))
    assert [each.verdict for each in noted] == ["first", "drop", "no change"]
    assert [each.accepted for each in noted] == [True, False, False]


def test_a_gain_is_proposed_and_moves_nothing(request_):
    look(request_)
    shift(request_, 0.05)
    gained = look(request_)
    assert gained.verdict == "gain"
    assert gained.headline.endswith("Make it the champion with: dml run asked --promote")
    assert [each.accepted for each in read_history(history_file(Path("results"), "asked"))] == [
        True,
        False,
    ]
    assert not Path("mlflow.db").exists()


def test_other_data_start_anew(request_):
    look(request_)
    shift(request_, -0.2)
    path = load_context(request_).evaluate_folder / "scores.json"
    path.write_text(path.read_text().replace("da7a", "0ther"))
    assert look(request_).verdict == "first"
