from dataclasses import replace

from dml_core.analysis.claims import judge_claims
from dml_core.analysis.observations import Observations
from dml_core.analysis.scored_study import summarize_scores
from tasks.report_page.answer import make_answer
from tests.references.observed_studies import GRID, observe, read_claims
from tests.references.written_studies import read_study

LARGE, MIDDLE, SMALL = "batch_size-90", "batch_size-60", "batch_size-30"
CLAIM = f"left: {{arms: [{LARGE}]}}, right: {{arms: [{SMALL}]}}"


def answer(study, observations):
    summary = summarize_scores(study, observations)
    judgements = judge_claims(study, observations, summary.comparisons)
    return make_answer(study, summary, {}, judgements)


def test_shares_are_given_in_percent_and_missing_arms_are_named(tmp_path):
    study = read_study(tmp_path, GRID)
    found = answer(study, observe({SMALL: [0.5, 0.52], LARGE: [0.6, 0.67]}))
    assert found.metric == "test.recall_at_1"
    assert found.best_arm == LARGE
    assert found.verdicts[0].startswith(
        "batch_size-30: recall_at_1 51.0 % (38.3 to 63.7), cannot tell from batch_size-90 yet"
    )
    assert found.verdicts[0].endswith("likely worse; about 4 seeds would decide")
    assert found.verdicts[1] == (
        "batch_size-60: no score. cannot tell from batch_size-90: batch_size-60 has no score"
    )
    assert found.verdicts[2] == "batch_size-90: recall_at_1 63.5 % (19.0 to 100.0), best"
    assert found.text.startswith(f"{found.recommendation}\nbatch_size-30: ")
    assert found.recommendation.endswith("(dml run asked --until-decided adds them).")
    assert "| test.recall_at_1 |" in found.markdown


def test_what_no_training_gives_is_a_line_of_every_answer(tmp_path):
    study = read_study(tmp_path, GRID)
    scores = observe({SMALL: [0.5, 0.52, 0.51], LARGE: [0.6, 0.61, 0.62]})
    untrained = {"pixels": {"recall_at_1": 0.29}, "bare features": {"recall_at_1": 0.7}}
    found = answer(study, replace(scores, untrained=untrained))
    assert found.verdicts[-1] == "bare features: recall_at_1 70.0 %, no training"
    assert found.verdicts[0].endswith("; worse than no training")
    assert found.recommendation.startswith("Do not train: no arm beats bare features (70.0 %).")


def test_a_decided_recommendation_names_the_command_for_what_is_open(tmp_path):
    study = read_study(tmp_path, f"{GRID}baseline: {SMALL}\n")
    clear = {LARGE: [0.9, 0.91, 0.92]}
    found = answer(study, observe({SMALL: [0.5, 0.52, 0.51], MIDDLE: [0.5, 0.53, 0.54], **clear}))
    assert found.recommendation.startswith(f"Use {LARGE}: ")
    assert f"cannot tell from {SMALL} yet" in found.verdicts[1]
    assert found.text.endswith(
        "\nMore seeds would help to decide what is open: dml run asked --until-decided"
    )
    decided = {SMALL: [0.1, 0.12, 0.11], MIDDLE: [0.5, 0.53, 0.54], **clear}
    assert answer(study, observe(decided)).remedy == ""
    unclear = {SMALL: [0.5, 0.52], LARGE: [0.6, 0.67]}
    assert answer(study, observe(unclear)).remedy == "", "the recommendation says it"


def test_a_value_at_the_edge_of_its_range_is_said_in_the_verdicts_line(tmp_path):
    study = read_study(tmp_path, GRID)
    summary = summarize_scores(study, observe({SMALL: [0.5, 0.52], LARGE: [0.6, 0.67]}))
    budget = {SMALL: {"at_bound": {"optimizer.learning_rate": "upper"}}}
    found = make_answer(study, summary, budget)
    assert found.verdicts[0].endswith("; optimizer.learning_rate at its upper bound")


def measured(metric, values):
    by_arm = {arm: dict(enumerate(each)) for arm, each in values.items()}
    return Observations(measured_scalars={metric: by_arm})


def test_seconds_are_given_in_milliseconds_and_fewer_are_better(tmp_path):
    study = read_study(tmp_path, f"{GRID}figure: {{y: cost.step_seconds}}\nmeasures: [step_cost]")
    seconds = {
        SMALL: [0.0100, 0.0101, 0.0102],
        MIDDLE: [0.0200, 0.0201, 0.0203],
        LARGE: [0.0100, 0.0108, 0.0099],
    }
    found = answer(study, measured("cost.step_seconds", seconds))
    assert found.best_arm == SMALL
    assert found.verdicts[0] == "batch_size-30: cost.step_seconds 10.10 ms (9.85 to 10.35), best"
    assert ", almost certainly worse than batch_size-30 (+10.03 ms, " in found.verdicts[1]
    assert ", cannot tell from batch_size-30 yet (+0.13 ms, " in found.verdicts[2]
    # 2 % of the mean of all arms, 13.5 ms
    assert "less than 0.27 ms" in found.markdown


def test_memory_is_given_in_mib(tmp_path):
    study = read_study(tmp_path, f"{GRID}figure: {{y: cost.memory_mib}}\nmeasures: [step_cost]")
    found = answer(study, measured("cost.memory_mib", {SMALL: [10.0, 11.0], LARGE: [9.0, 9.0]}))
    assert "cost.memory_mib 10.5 MiB (4.1 to 16.9)" in found.verdicts[0]
    assert found.best_arm == LARGE


CONTINUOUS = "fixed: {data.continuous_labels: [rotation]}\n"


def test_distances_have_no_unit_and_less_is_better(tmp_path):
    text = f"{GRID}{CONTINUOUS}figure: {{y: test.mean_label_distance_at_1}}"
    scores = observe({SMALL: [0.5, 0.51], LARGE: [0.3, 0.31]}, "mean_label_distance_at_1")
    found = answer(read_study(tmp_path, text), scores)
    assert found.best_arm == LARGE
    assert (
        "mean_label_distance_at_1 0.5050 (0.4415 to 0.5685), almost certainly worse than"
        in found.verdicts[0]
    )


def test_a_figure_of_curves_is_answered_by_recall(tmp_path):
    text = f"{GRID}figure: {{kind: lines, x: epoch, y: train.loss}}\n"
    assert answer(read_study(tmp_path, text), observe({})).metric == "test.recall_at_1"
    ranks = "fixed: {evaluation.recall_at: [2, 4]}"
    assert answer(read_study(tmp_path, text + ranks), observe({})).metric == "test.recall_at_2"
    text = f"{GRID}figure: {{kind: matrices, y: table.hardest_distances}}\n"
    text += "fixed: {evaluation.class_distances: 3}"
    assert answer(read_study(tmp_path, text), observe({})).metric == "test.recall_at_1"


def test_curves_of_continuous_labels_are_answered_by_ndcg(tmp_path):
    fixed = "fixed: {data.continuous_labels: [rotation], loss.name: log_ratio}\n"
    text = f"{GRID}{fixed}figure: {{kind: lines, x: '*', y: test.ndcg_at_*}}"
    assert answer(read_study(tmp_path, text), observe({})).metric == "test.ndcg_at_10"


def test_claims_stand_with_their_verdicts(tmp_path):
    study = read_claims(tmp_path, CLAIM, CLAIM + ", expect: lower")
    scores = observe({SMALL: [0.5, 0.5, 0.51], MIDDLE: [0.5, 0.5, 0.5], LARGE: [0.6, 0.61, 0.6]})
    found = answer(study, scores)
    assert [each["verdict"] for each in found.claims] == ["supported", "contradicted"]
    assert found.claims[0]["text"] == "claim 0"
    lines = found.claims_text.splitlines()
    assert lines[0] == "claim 0"
    assert lines[1].startswith("  supported: test.recall_at_1 of batch_size-90 less batch_size-30")


def test_the_command_for_seeds_is_that_of_the_run_with_its_profile(tmp_path):
    study = read_study(tmp_path, f"{GRID}baseline: {SMALL}\n")
    command = "dml run asked --until-decided --profile cars"
    clear = observe({SMALL: [0.5, 0.52, 0.51], MIDDLE: [0.5, 0.53, 0.54], LARGE: [0.9, 0.91, 0.92]})
    for observations in (observe({SMALL: [0.5, 0.52], LARGE: [0.6, 0.67]}), clear):
        summary = summarize_scores(study, observations, command=command)
        assert command in make_answer(study, summary, {}, command=command).text
