import pytest

from tests.references.written_studies import LEARNING_RATE, TWO_ARMS, problems_of, read_study

ARMS = "question: q\narms: {a: {loss.alpha: 1}, b: {loss.alpha: 2}}\n"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (
            "{question: q, arms: {a: {}, b: {loss.alpha: 32}}}",
            "arms.b changes nothing: with all defaults and fixed values it equals arm 'a'.",
        ),
        (ARMS + "baseline: c", "baseline must be one of the arms. Got 'c'."),
        (
            "{question: q, arms: {a: {}, b: {scientific: {loss.alpha: 1}, compare_with: aa}}}",
            "arms.b.compare_with must be one of the arms. Got 'aa'.",
        ),
        (
            "{question: q, arms: {a: {}, b: {scientific: {loss.alpha: 1}, compare_with: b}}}",
            "arms.b.compare_with must be another arm. Got itself.",
        ),
        (
            ARMS + "nuisance: {loss.alpha: {choice: [1, 2]}}\ntrials_per_arm: 1",
            "nuisance.loss.alpha is scientific too, in arm 'a'.",
        ),
        (
            ARMS + LEARNING_RATE + "\ntrials_per_arm: 1\nfixed: {optimizer.learning_rate: 0.1}",
            "nuisance.optimizer.learning_rate is fixed too.",
        ),
        (ARMS + "fixed: {data.fold: 1}", "fixed.data.fold is set by the study"),
        (ARMS + "fixed: {data.folds: 2}", "fixed.data.folds is set by the study: folds"),
        (
            "{question: q, arms: {a: {loss.alpha: 1}, A: {loss.alpha: 2}}}",
            "arms 'a' and 'A' differ only by case.",
        ),
        (
            "{question: q, grid: {model.backbone: ['timm:a', 'timm/a']}}",
            "grid makes two arms named 'timm_a'.",
        ),
        (
            "{question: q, arms: {a: {data.images_per_class: 9}, b: {}}}",
            "arms.b has another data.images_per_class than arm 'a', but all arms share one",
        ),
        (
            "{question: q, arms: {a: {data.alias: x}, b: {}}}",
            "arms.b changes nothing: with all defaults and fixed values it equals arm 'a'.",
        ),
        (
            "{question: q, arms: {a: {loss.alpha: 2}, b: {}}, grid: {loss.alpha: [3, 4]}}",
            "arms.a.loss.alpha is in grid too, which would win.",
        ),
    ],
)
def test_a_study_whose_answer_would_be_worthless_is_refused(tmp_path, text, problem):
    assert any(found.startswith(problem) for found in problems_of(tmp_path, text))


@pytest.mark.parametrize("place", ["scientific", "fixed"])
def test_an_arms_own_range_contradicts_its_other_values(tmp_path, place):
    scientific = "loss.alpha: 2" if place == "scientific" else "loss.delta: 0"
    text = f"""
question: q
arms: {{a: {{scientific: {{{scientific}}}, nuisance: {{loss.alpha: {{choice: [3, 4]}}}}}}}}
fixed: {{{"loss.alpha: 1" if place == "fixed" else ""}}}
trials_per_arm: 1
"""
    wanted = f"arms.a.nuisance.loss.alpha is in {place} too. Leave one out."
    assert problems_of(tmp_path, text) == [wanted]


def test_arms_that_differ_by_what_is_tuned_are_different(tmp_path):
    text = """
question: Does tuning help?
arms:
  tuned: {nuisance: {loss.alpha: {uniform: [8, 64]}}}
  default: {}
trials_per_arm: 2
"""
    assert [arm.name for arm in read_study(tmp_path, text).searched_arms] == ["tuned"]


@pytest.mark.parametrize("key", ["loss.name=triplet", "optimizer.learning_rate=0.1"])
def test_set_may_not_override_what_the_study_varies(tmp_path, key):
    problems = problems_of(tmp_path, TWO_ARMS, key)
    name = key.split("=")[0]
    wanted = f"--set {name} would override a key that the study varies in arm 'triplet'"
    assert any(problem.startswith(wanted) for problem in problems)


def test_set_may_not_give_the_seed(tmp_path):
    (problem,) = problems_of(tmp_path, TWO_ARMS, "seed=3")
    assert problem.startswith("--set seed is set by the study")


def test_set_may_not_give_folds_that_the_study_gives(tmp_path):
    text = TWO_ARMS + "folds: 2\nfixed: {data.alias: two}"
    (problem,) = problems_of(tmp_path, text, "data.folds=3")
    assert problem.startswith("--set data.folds is set by the study")


def test_a_kind_chosen_by_set_that_drops_an_arms_knob_is_refused(tmp_path):
    problems = problems_of(tmp_path, ARMS, "loss.name=triplet")
    wanted = "arms a, b: loss.alpha has no effect, since a later layer chooses another loss.name."
    assert wanted in problems


def test_arms_may_differ_in_what_a_trial_takes_of_the_data(tmp_path):
    text = """
question: q
arms: {bins: {data.quantize_bins: 4}, more: {data.quantize_bins: 8}}
fixed: {data.continuous_labels: [rotation]}
"""
    assert len(read_study(tmp_path, text).arms) == 2
