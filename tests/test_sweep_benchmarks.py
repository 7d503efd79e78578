"""The benchmarks of whole sweeps compare what gives the same results, and compute soundly."""

import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import pipeline
from benchmarks.__main__ import main
from benchmarks.image_folders import write_pictures
from benchmarks.many_trials import quarter_costs
from benchmarks.scaling import busy_share
from dml_core.config import load_trial_config
from dml_core.data.prepare import prepare_dataset
from dml_core.data.prepared import open_development
from dml_core.data.sources.registry import list_images

ROOT = Path(__file__).parents[1]
LIGHT, ON_A_CLUSTER = ("frozen_trunk", "fine_tuning"), ("pipeline", "scaling")


@pytest.mark.parametrize("name", LIGHT)
def test_a_plain_script_has_our_network_and_our_first_loss(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["--short", "--only", name]) == 0
    assert not list(tmp_path.iterdir())


@pytest.mark.nightly
@pytest.mark.integration
@pytest.mark.parametrize("name", ON_A_CLUSTER)
def test_a_trial_of_a_sweep_is_the_trial_and_none_is_lost(name, tmp_path):
    # In a process of its own: a cluster that this one joined would be the next test's.
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks", "--short", "--only", name],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "equal" in done.stdout


def test_the_cost_of_a_trial_is_that_of_its_quarter():
    # 1 s for each of the first four of sixteen trials after the first one, 3 s for the last four.
    times = [0, 1, 2, 3, 4, 6, 8, 10, 12, 14, 16, 18, 21, 24, 27, 30]
    assert quarter_costs(times) == (1.0, 3.0)


def test_the_costs_explain_both_sweeps():
    # 20 s however many trials, and 1.5 s for each of those on a core: 24 of the many, 2 of the few.
    costs = pipeline.solve(20 + 2 * 1.5, 20 + 24 * 1.5, 1.2)
    assert costs.fixed == pytest.approx(20)
    assert costs.trial == pytest.approx(0.3)
    assert costs.of_long_sweep() == pytest.approx(20 + 60 * 0.3)


def test_trials_of_the_two_sweeps_differ_so_that_none_is_taken_over():
    arms = [
        arm["optimizer.learning_rate"]
        for count, rate in ((16, 0.002), (4, 0.003))
        for arm in pipeline.make_study(count, learning_rate=rate, seeds=1)["arms"].values()
    ]
    assert len(set(arms)) == 20


def test_the_busy_share_counts_while_all_are_up_and_trials_are_left():
    # Two nodes, up at 1; each rests for 1 of 5 seconds between trials; the last begins at 11.
    times = [(0, 4), (1, 5), (5, 9), (6, 10), (10, 14), (11, 15)]
    assert busy_share(times, nodes=2) == pytest.approx((3 + 4 + 4 + 4 + 1) / 20)
    assert busy_share([(0, 5), (0, 5), (5, 10), (5, 10)], nodes=2) == 1.0


def test_pictures_for_scripts_are_those_that_trials_see(tmp_path):
    from torchvision.datasets import ImageFolder

    config = load_trial_config(
        ROOT / "params.yaml",
        ["data.max_classes=8", "data.images_per_class=2", f"data.prepared_root={tmp_path}"],
    )
    prepare_dataset(list_images(config.data), config.data, workers=1)
    write_pictures(config.data, tmp_path / "pictures")
    ours = open_development(config.data).train
    theirs = ImageFolder(tmp_path / "pictures" / "train")
    assert theirs.targets == sorted(ours.labels.tolist())
    picture, label = theirs[0]
    first = ours.labels.tolist().index(label)
    assert (ours.image(first)[:, :, 0] == picture.convert("L")).all()


def test_a_run_with_nothing_to_do_imports_nothing_heavy():
    heavy = ("torch", "ray", "mlflow", "scipy.stats", "sklearn", "matplotlib.pyplot", "faiss")
    code = f"import sys, flows.ablation; print([m for m in {heavy} if m in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"
