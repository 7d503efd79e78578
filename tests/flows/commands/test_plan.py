import re
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest

from dml_core.config.pipeline import RayConfig
from dml_core.data.records import DatasetError
from dml_core.studies.cost import sum_cost
from flows.commands import plan as command
from tasks.sweep.cluster import RayUnreachable
from tasks.sweep.nodes import NodeCount

ROOT = Path(__file__).parents[3]
PARAMS = Path("params.yaml")


@pytest.fixture(autouse=True)
def in_project(monkeypatch):
    monkeypatch.chdir(ROOT)


def plan(capsys, names=(), *, every=False, speed=None, profile="paper"):
    command.plan(
        list(names),
        PARAMS,
        ["data.prepared_root=nowhere"],
        profile=profile,
        all_=every,
        images_per_second=speed,
    )
    return re.sub(r"\s+", " ", capsys.readouterr().out)


def hours_of(text):
    return float(re.search(r"about ([\d.,]+) GPU hours", text).group(1).replace(",", ""))


def test_a_paper_profile_is_planned_without_its_data(capsys):
    said = plan(capsys, ["gradients"])
    # A single learning rate needs no search.
    assert "search " not in said.split("repeat ")[0]
    assert "repeat proxy_nca seeds 0, 1, 2" in said
    assert "0 search and 6 repeat trials: about" in said
    assert "one V100 16 GB in float32" in said
    assert "torchvision:googlenet at 224 px" in said


def test_twice_the_speed_takes_half_the_hours(capsys):
    slow, fast = (hours_of(plan(capsys, ["alpha_delta"], speed=s)) for s in (100, 200))
    assert slow == pytest.approx(2 * fast, rel=0.02)


def test_all_studies_are_summed_and_one_without_the_profile_is_named(capsys):
    said = plan(capsys, every=True)
    assert "main has no profile 'paper'" in said
    assert re.search(r"expansion 10 30 [\d.]+ GPU hours", said)
    trials = [int(found) for found in re.findall(r" (\d+) [\d,]+\.\d GPU hours", said)]
    assert len(trials) == 25
    assert f"{sum(trials)} trials, " in said


UNKNOWN = {
    "adaptation": "model.backbone=timm:tf_efficientnet_lite0 has no published number of operations",
    "continuous": "model.backbone=convnet has no published number of operations",
}


@pytest.mark.parametrize("name", UNKNOWN)
def test_a_study_of_unknown_cost_is_listed_with_the_command_that_prepares_its_data(capsys, name):
    said = plan(capsys, [name], profile=None)
    assert re.search(r"repeat \w+ seeds 0, 1, 2", said)
    assert f"trials: cost unknown until: dml prepare {name} --set data.prepared_root" in said
    assert UNKNOWN[name] in said


def open_glyphs(config):
    """Plays the prepared data of params.yaml; no other are there."""
    if config.alias != "glyphs":
        raise DatasetError("not prepared")
    return SimpleNamespace(train=Train())


class Train(list):
    num_classes = 100

    def __len__(self):
        return 2400


def test_a_study_of_unknown_cost_keeps_no_row_of_the_others_back(capsys, monkeypatch):
    names = ["adaptation", "expansion", "continuous"]
    monkeypatch.setattr("flows.commands.studies.study_names", lambda: names)
    monkeypatch.setattr("tasks.study.open_development", open_glyphs)
    # A minute for each trial. Rungs at 6 and 18 of 21 epochs leave 3 * 6 + 11/6 * 12 + 17/12 * 3 of
    # 63 epochs to the 3 tries of each of 10 arms: 30 * 44.25 / 63 + 50 seeds = 71.1 minutes.
    measured = {"expansion": 60.0}
    monkeypatch.setattr(
        command, "_measure",
        lambda study: sum_cost(study, {arm.name: measured[study.name] for arm in study.arms}),
    )  # fmt: skip
    said = plan(capsys, every=True, profile=None)
    assert re.search(r"adaptation 4 24 unknown until: dml prepare adaptation --set \S+ exp", said)
    assert re.search(r"expansion 10 80 71\.1 minutes continuous 3 24 unknown until", said)
    assert "128 trials, 71.1 minutes, without the cost of 2 studies; a trial of two" in said


def describe_cluster(monkeypatch, nodes, *, error=None, **config):
    """Returns the lines about a cluster that has these nodes; Ray itself is not started."""

    @contextmanager
    def connect(_):
        if error:
            raise RayUnreachable(error)
        yield

    monkeypatch.setattr("tasks.sweep.cluster.connect", connect)
    monkeypatch.setattr("tasks.sweep.nodes.count_nodes", lambda: nodes)
    monkeypatch.setattr("ray.cluster_resources", lambda: {"CPU": 6.0})
    pipeline = SimpleNamespace(ray=RayConfig(cpus_per_trial=2, **config))
    context = SimpleNamespace(project=SimpleNamespace(pipeline=pipeline))
    return command._describe_cluster(context)


def test_the_nodes_of_a_joined_cluster_are_described_and_none_of_this_machine(monkeypatch):
    two = NodeCount(2, 0)
    assert describe_cluster(monkeypatch, two, address="local") == []
    # Six CPUs, two for each trial.
    assert describe_cluster(monkeypatch, two, address="head:6379") == [
        "cluster head:6379: 2 nodes; room for 3 trials at once"
    ]
    growing = {"address": "auto", "elastic": True, "max_concurrent": 8}
    assert describe_cluster(monkeypatch, NodeCount(1, 4), **growing) == [
        "cluster auto: 1 node, 4 requested; nodes are requested for 8 trials at once"
    ]


def test_a_cluster_that_is_away_is_a_line_of_the_plan(monkeypatch):
    said = describe_cluster(monkeypatch, NodeCount(0, 0), error="it is away", address="auto")
    assert said == ["cluster: it is away"]


def test_a_plan_without_studies_is_refused():
    with pytest.raises(ValueError, match=r"needs the names of studies, or --all"):
        command.plan()
