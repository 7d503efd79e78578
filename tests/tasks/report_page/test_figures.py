import csv
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from dml_core.analysis.observations import Observations
from dml_core.studies.definition import Figure, Published
from tasks.report_page.figure import draw_figure, write_numbers
from tasks.report_page.panels import Panel, Point, Series, make_point
from tasks.report_page.pictures import draw_embedding_map, draw_learning_curves
from tests.references.observed_studies import make_training, observe
from tests.references.written_studies import read_study

BATCHES = "question: Does a larger batch help?\ngrid: {sampler.batch_size: [30, 60, 120]}\n"
LOSSES = """
question: Which loss?
arms:
  proxy_anchor: {loss.name: proxy_anchor}
  triplet: {loss.name: triplet}
  proxy_nca: {loss.name: proxy_nca}
"""
SCORES = {"proxy_anchor": [0.8, 0.82, 0.81], "triplet": [0.7, 0.74, 0.75]}


def read_csv(path):
    with open(path, newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def interval(values):
    """Mean and 95 % t-interval, by scipy alone."""
    mean = np.mean(values)
    low, high = stats.t.interval(0.95, len(values) - 1, loc=mean, scale=stats.sem(values))
    return mean, low, high


def test_the_whiskers_of_a_share_end_at_100_percent():
    scores = {0: 0.99, 1: 0.7}
    assert make_point("a", scores, "test.recall_at_1").high == 1.0
    assert make_point("a", scores, "train.loss").high > 1.5


def texts(axes):
    return [text.get_text() for text in axes.texts]


def draw(tmp_path, study, observations, published=(), **knobs):
    target = tmp_path / "out" / "figure"
    canvas = draw_figure(study, observations, Figure(**knobs), target=target, published=published)
    for ending in (".png", ".svg"):
        assert target.with_suffix(ending).stat().st_size > 1000
    return canvas, read_csv(target.with_suffix(".csv"))


def test_bars_are_the_means_and_whiskers_the_intervals(tmp_path):
    study = read_study(tmp_path, LOSSES)
    canvas, rows = draw(tmp_path, study, observe({**SCORES, "proxy_nca": [0.5, 0.5]}))
    (axes,) = canvas.axes
    # Long names lie: a bar's end is where it starts and its width.
    ends = [bar.get_x() + bar.get_width() for bar in axes.patches if bar.get_label() != "_missing"]
    assert ends == pytest.approx([np.mean(SCORES["proxy_anchor"]), np.mean(SCORES["triplet"]), 0.5])
    whiskers = [tuple(c.get_segments()[0][:, 0]) for c in axes.collections]
    assert whiskers[1] == pytest.approx(interval(SCORES["triplet"])[1:])
    assert "73.0" in texts(axes)
    assert [row["x"] for row in rows] == ["proxy_anchor", "triplet", "proxy_nca"]
    numbers = [float(rows[1][name]) for name in ("mean", "low", "high", "num_seeds")]
    assert numbers == pytest.approx([*interval(SCORES["triplet"]), 3])


@pytest.mark.parametrize(("score", "words"), [(0.69, "pixels 69.0"), (0.1, "below the axis")])
def test_the_score_without_training_is_a_line_or_a_word_at_the_axis(tmp_path, score, words):
    study = read_study(tmp_path, LOSSES)
    scores = {"proxy_anchor": [0.7, 0.71], "triplet": [0.68, 0.69], "proxy_nca": [0.68, 0.69]}
    observed = replace(observe(scores), untrained={"pixels": {"recall_at_1": score}})
    canvas, rows = draw(tmp_path, study, observed)
    (axes,) = canvas.axes
    lines = [line for line in axes.lines if list(line.get_xdata()) == [score, score]]
    assert len(lines) == (1 if score == 0.69 else 0)
    assert any(words in text for text in texts(axes))
    assert (rows[-1]["series"], rows[-1]["x"], rows[-1]["mean"]) == (
        "no training", "pixels", str(score),
    )  # fmt: skip
    # A figure of curves has no place for it.
    curves, _ = draw(tmp_path, study, observed, kind="lines", x="epoch", y="validation.map_at_r")
    assert not any("pixels" in text for text in texts(curves.axes[0]))


def test_two_metrics_on_one_pair_of_axes_have_a_line_each_without_training(tmp_path):
    study = read_study(tmp_path, BATCHES)
    arms = {f"batch_size-{size}": {0: 0.5, 1: 0.6} for size in (30, 60, 120)}
    scores = {
        arm: {seed: {"recall_at_1": y, "binary_recall_at_1": y - 0.1} for seed, y in each.items()}
        for arm, each in arms.items()
    }
    untrained = {"pixels": {"recall_at_1": 0.55, "binary_recall_at_1": 0.45}}
    observed = Observations(scores=scores, untrained=untrained)
    figure = {"kind": "line", "x": "sampler.batch_size"}
    metrics = ["test.recall_at_1", "test.binary_recall_at_1"]
    canvas, rows = draw(tmp_path, study, observed, y=metrics, **figure)
    (axes,) = canvas.axes
    flat = {line.get_ydata()[0] for line in axes.lines if len(set(line.get_ydata())) == 1}
    assert {0.55, 0.45} <= flat
    assert {"pixels, R@1 55.0", "pixels, R@1 of binary codes 45.0"} <= set(texts(axes))
    assert [row["mean"] for row in rows if row["series"] == "no training"] == ["0.55", "0.45"]


def test_a_heat_map_names_the_score_without_training_below_its_axis(tmp_path):
    text = (
        "question: q?\nfixed: {loss.name: proxy_anchor}\n"
        "grid: {loss.alpha: [4, 32], loss.delta: [0.1, 0.2]}\n"
    )
    study = read_study(tmp_path, text)
    scores = {arm.name: [0.5, 0.6] for arm in study.arms}
    observed = replace(observe(scores), untrained={"pixels": {"recall_at_1": 0.25}})
    figure = {"kind": "heatmap", "x": "loss.delta", "group": "loss.alpha"}
    canvas, rows = draw(tmp_path, study, observed, **figure)
    assert canvas.axes[0].get_xlabel().endswith("\nno training: pixels 25.0 %")
    assert (rows[-1]["series"], rows[-1]["mean"]) == ("no training", "0.25")


def test_scores_by_rank_or_length_are_drawn_without_training_too(tmp_path):
    study = read_study(tmp_path, BATCHES)
    ranks = {"ndcg_at_1": 0.5, "ndcg_at_10": 0.7, "dim8_recall_at_1": 0.4, "recall_at_1": 0.6}
    scores = {arm.name: {0: ranks, 1: ranks} for arm in study.arms}
    untrained = {"pixels": {"ndcg_at_1": 0.2, "ndcg_at_10": 0.3, "recall_at_1": 0.45}}
    observed = Observations(scores=scores, untrained=untrained)
    canvas, rows = draw(tmp_path, study, observed, kind="lines", x="*", y="test.ndcg_at_*")
    line = canvas.axes[0].lines[-1]
    assert (list(line.get_xdata()), list(line.get_ydata())) == ([1.0, 10.0], [0.2, 0.3])
    found = [(row["x"], row["mean"]) for row in rows if row["series"] == "pixels, no training"]
    assert found == [("1.0", "0.2"), ("10.0", "0.3")]
    # The features of no training are not cut: their whole score is one line across.
    lengths, _ = draw(tmp_path, study, observed, kind="lines", x="*", y="test.dim*_recall_at_1")
    assert any("pixels 45.0" in text for text in texts(lengths.axes[0]))


def test_an_arm_without_a_score_keeps_its_place_in_bars(tmp_path):
    study = read_study(tmp_path, LOSSES)
    canvas, rows = draw(tmp_path, study, observe(SCORES))
    (axes,) = canvas.axes
    assert [label.get_text() for label in axes.get_yticklabels()] == [
        "proxy_anchor", "triplet", "proxy_nca",
    ]  # fmt: skip
    hatched = [bar for bar in axes.patches if bar.get_hatch() == "////"]
    assert len(hatched) == 1
    assert hatched[0].get_y() + hatched[0].get_height() / 2 == pytest.approx(2)
    assert "no score" in texts(axes)
    assert (rows[2]["mean"], rows[2]["num_seeds"]) == ("", "0")


def test_bars_of_times_begin_at_zero_and_shares_say_where_they_begin(tmp_path):
    study = read_study(tmp_path, LOSSES)
    measured = Observations(
        scores=observe(SCORES).scores,
        measured_scalars={"cost.step_seconds": {"triplet": {0: 0.0100, 1: 0.0101}}},
    )
    canvas, _ = draw(tmp_path, study, measured, y=["cost.step_seconds", "test.recall_at_1"])
    times, shares = canvas.axes
    assert times.get_xlim()[0] == 0
    assert times.get_xlabel() == "time of a training step (ms)"
    assert shares.get_xlim()[0] == pytest.approx(0.6)
    assert "axis starts at 60 %" in shares.get_xlabel()


def test_lines_go_through_the_means_in_the_order_of_x(tmp_path):
    study = read_study(tmp_path, BATCHES)
    values = {"batch_size-120": [0.9, 0.94], "batch_size-30": [0.5, 0.56]}
    figure = {"kind": "line", "x": "sampler.batch_size", "log_x": True}
    canvas, rows = draw(tmp_path, study, observe(values), **figure)
    (axes,) = canvas.axes
    line = axes.lines[0]
    assert list(line.get_xdata()) == [30, 120]
    assert list(line.get_ydata()) == pytest.approx([0.53, 0.92])
    _, low, high = interval(values["batch_size-30"])
    band = axes.collections[0].get_paths()[0].vertices
    at_30 = band[band[:, 0] == 30][:, 1]
    assert (at_30.min(), at_30.max()) == pytest.approx((low, high))
    # 60 has no score: a cross at the foot, and a line in the file.
    crosses = [each for each in axes.lines if each.get_marker() == "x"]
    assert [list(cross.get_xdata()) for cross in crosses] == [[60]]
    assert "no score" in texts(axes)
    assert [(row["x"], row["num_seeds"]) for row in rows] == [
        ("30", "2"),
        ("60", "0"),
        ("120", "2"),
    ]
    assert axes.get_xscale() == "log"


def test_published_scores_have_their_own_axes_with_their_source(tmp_path):
    study = read_study(tmp_path, BATCHES)
    paper = Published(
        dataset="CUB-200-2011", backbone="BN-Inception", source="Kim et al. 2020, table 5",
        series={"Proxy-Anchor": {30: 65.9, 180: 69.0}},
    )  # fmt: skip
    figure = {"kind": "line", "x": "sampler.batch_size"}
    scores = observe({"batch_size-30": [0.5, 0.6], "batch_size-60": [0.6, 0.7]})
    canvas, rows = draw(tmp_path, study, scores, published=[paper], **figure)
    ours, theirs = canvas.axes
    assert ours.figure is not theirs.figure
    assert all(max(line.get_ydata(), default=0) <= 1 for line in ours.lines)
    assert list(theirs.lines[0].get_ydata()) == [65.9, 69.0]
    title = theirs.get_title(loc="left")
    assert all(part in title for part in ("CUB-200-2011", "BN-Inception", "Kim et al. 2020"))
    assert rows[-1]["panel"] == "published: CUB-200-2011, BN-Inception"
    assert float(rows[-1]["mean"]) == 69.0


def test_curves_of_seconds_are_averaged_place_by_place(tmp_path):
    study = read_study(tmp_path, LOSSES)
    epochs = [{"validation": {"recall_at_1": 0.2}}, {"validation": {"recall_at_1": 0.6}}]
    slow = make_training(*({**epoch, "train_seconds": 4.0} for epoch in epochs))
    trainings = {"triplet": {0: make_training(*epochs), 1: slow}}
    figure = {"kind": "lines", "x": "seconds", "y": "validation.recall_at_1"}
    canvas, rows = draw(tmp_path, study, Observations(trainings=trainings), **figure)
    drawn = {line.get_label(): line for line in canvas.axes[0].lines}
    # Epochs end after 2 and 4 s with one seed and after 4 and 8 s with the other.
    assert list(drawn["triplet"].get_xdata()) == [3, 6]
    assert list(drawn["triplet"].get_ydata()) == pytest.approx([0.2, 0.6])
    legend = [text.get_text() for text in canvas.legends[0].get_texts()]
    assert legend == ["proxy_anchor (no score)", "triplet", "proxy_nca (no score)"]
    assert [row["series"] for row in rows if row["num_seeds"] == "0"] == [
        "proxy_anchor", "proxy_nca",
    ]  # fmt: skip


def test_metrics_of_one_unit_share_axes_and_others_do_not(tmp_path):
    study = read_study(tmp_path, BATCHES)
    scores = {
        f"batch_size-{x}": {0: {"recall_at_1": x / 200, "recall_at_2": x / 150}} for x in (30, 60)
    }
    costs = {"cost.memory_mib": {"batch_size-30": {0: 100.0}}}
    found = Observations(scores=scores, measured_scalars=costs)
    figure = {"kind": "line", "x": "sampler.batch_size"}
    canvas, _ = draw(tmp_path, study, found, **figure, y=["test.recall_at_1", "test.recall_at_2"])
    assert [axes.get_ylabel() for axes in canvas.axes] == ["score, test classes (%)"]
    assert [text.get_text() for text in canvas.legends[0].get_texts()] == ["R@1", "R@2"]
    canvas, _ = draw(tmp_path, study, found, **figure, y=["test.recall_at_1", "cost.memory_mib"])
    labels = [axes.get_ylabel() for axes in canvas.axes]
    assert labels == ["R@1, test classes (%)", "peak memory (MiB)"]


def test_a_heat_map_has_a_cell_for_each_pair_and_hatches_what_is_missing(tmp_path):
    study = read_study(
        tmp_path,
        "question: q\nfixed: {loss.name: proxy_anchor}\n"
        "grid: {loss.alpha: [8, 32], loss.delta: [0.1, 0.2]}\n",
    )
    arms = [arm.name for arm in study.arms]
    scores = {arm: [0.5 + 0.1 * place, 0.52 + 0.1 * place] for place, arm in enumerate(arms[:3])}
    figure = {"kind": "heatmap", "x": "loss.delta", "group": "loss.alpha"}
    canvas, _ = draw(tmp_path, study, observe(scores), **figure)
    axes = canvas.axes[0]
    cells = np.ma.filled(axes.images[0].get_array(), np.nan)
    np.testing.assert_allclose(cells, [[0.51, 0.61], [0.71, np.nan]])
    assert [patch.get_xy() for patch in axes.patches if patch.get_hatch()] == [(0.5, 0.5)]
    assert "no\nscore" in texts(axes)
    assert any(text.startswith("51.0\n±") for text in texts(axes))


def test_matrices_are_means_over_seeds_of_the_first_and_the_last_epoch(tmp_path):
    study = read_study(tmp_path, LOSSES)

    def train(offset):
        tables = [[[0.0, 1.0 + offset], [3.0, 0.0]], [[0.0, 5.0], [6.0, 0.0]], [[9.0, 9.0]] * 2]
        return make_training(*({"tables": {"hardest_distances": table}} for table in tables))

    found = Observations(trainings={"triplet": {0: train(0.0), 1: train(1.0)}})
    canvas, rows = draw(tmp_path, study, found, kind="matrices", y="table.hardest_distances")
    pictures = {axes.get_title(loc="left"): axes for axes in canvas.axes}
    first = pictures["triplet, epoch 1"].images[0].get_array()
    np.testing.assert_allclose(first, [[0.0, 1.5], [3.0, 0.0]])
    assert pictures["triplet, epoch 3"].images[0].get_clim() == (0.0, 9.0)
    assert "no score" in texts(pictures["proxy_nca"])
    at = next(row for row in rows if row["series"] == "triplet, epoch 1" and row["x"] == "0,1")
    assert float(at["mean"]) == 1.5


def test_many_arms_get_a_learning_curve_each(tmp_path):
    names = [f"{loss}-{size}" for loss in ("triplet", "anchor") for size in range(4)]
    arms = "".join(f"  {name}: {{sampler.batch_size: {30 + n}}}\n" for n, name in enumerate(names))
    study = read_study(tmp_path, f"question: q\narms:\n{arms}")
    epochs = [{"train_loss": 1.0 / e, "validation": {"map_at_r": 0.1 * e}} for e in (1, 2)]
    found = Observations(trainings={name: {0: make_training(*epochs)} for name in names[1:]})
    stems = draw_learning_curves(study, found, folder=tmp_path / "out")
    assert [stem.name for stem in stems] == ["curves-validation", "curves-loss"]
    rows = read_csv(tmp_path / "out" / "curves-loss.csv")
    assert [row["series"] for row in rows if row["mean"] == ""] == [names[0]]
    assert [float(row["mean"]) for row in rows if row["series"] == names[1]] == [1.0, 0.5]


def test_a_map_draws_names_as_they_stand(tmp_path):
    source = tmp_path / "embedding_map.csv"
    source.write_text('x,y,class\n0,0,"$\\frac"\n1,1,"<script>"\n1,2,"tab\there"\n')
    assert draw_embedding_map(source, tmp_path / "map")
    drawing = (tmp_path / "map.svg").read_text()
    assert "<script>" not in drawing
    assert not draw_embedding_map(tmp_path / "absent.csv", tmp_path / "none")
    assert not (tmp_path / "none.png").exists()


def test_no_cell_of_a_csv_file_is_a_formula(tmp_path):
    points = (Point("=1+1", 0.5), Point(-2.5, -0.5), Point("-2.5", 0.1))
    panel = Panel(metric="test.map_at_r", series=(Series("@SUM(A1)", points),))
    write_numbers([panel], tmp_path / "figure.csv")
    rows = read_csv(tmp_path / "figure.csv")
    assert [row["series"] for row in rows] == ["'@SUM(A1)"] * 3
    assert [row["x"] for row in rows] == ["'=1+1", "-2.5", "-2.5"]
    assert [row["mean"] for row in rows] == ["0.5", "-0.5", "0.1"]


def test_equal_numbers_give_equal_files(tmp_path):
    study = read_study(tmp_path, LOSSES)
    files = []
    for folder in ("a", "b"):
        draw_figure(study, observe(SCORES), Figure(), target=tmp_path / folder / "figure")
        files.append([path.read_bytes() for path in sorted((tmp_path / folder).iterdir())])
    assert len(files[0]) == 3
    assert files[0] == files[1]
