import re
from pathlib import Path

import pytest

from flows.commands import plan as command

ROOT = Path(__file__).parents[3]
PARAMS = Path("params.yaml")


@pytest.fixture(autouse=True)
def in_project(monkeypatch):
    monkeypatch.chdir(ROOT)


def plan(capsys, names=(), *, every=False, speed=None):
    command.plan(
        list(names),
        PARAMS,
        ["data.prepared_root=nowhere"],
        profile="paper",
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


def test_a_plan_without_studies_is_refused():
    with pytest.raises(ValueError, match=r"needs the names of studies, or --all"):
        command.plan()
