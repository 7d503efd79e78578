"""dml ask up to the study that it writes; tests/flows/test_ask.py runs one to its end."""

import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import yaml
from PIL import Image
from typer.testing import CliRunner

from dml_core.asking.sizing import BudgetTooSmall
from dml_core.config import ConfigError
from dml_core.config.yaml_files import write_section
from flows.cli import app
from flows.commands.ask import ask
from flows.commands.asked_study import REPORT_SECONDS, Asked, measure_reserve
from tasks.study import SECONDS_FILE, load_context

ROOT = Path(__file__).parents[3]


def draw(file, number):
    """Draws a small image that no other number gives."""
    pixels = np.random.default_rng(number).integers(0, 255, (24, 24, 3), dtype=np.uint8)
    file.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(file)


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    """12 classes with 6 images each, and a table that gives each image an angle."""
    folder = tmp_path_factory.mktemp("our 'own'") / "photos"
    for number in range(72):
        draw(folder / f"class {number // 6}" / f"{number}.png", number)
    (folder.parent / "angles").mkdir()
    paths = [f"{number}.png" for number in range(40)]
    for number, path in enumerate(paths):
        draw(folder.parent / "angles" / path, number)
    table = pd.DataFrame({"file": paths, "angle": np.linspace(0, 90, 40)})
    table.to_csv(folder.parent / "angles" / "angles.csv", index=False)
    return folder


@pytest.fixture
def project(tmp_path, monkeypatch):
    shutil.copy(ROOT / "params.yaml", tmp_path / "params.yaml")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write(path, *assignments, name="birds", question="loss", minutes=60.0):
    ask(
        str(path), minutes, name, question, most_seeds=None, only_write=True,
        set_=list(assignments), params=Path("params.yaml"),
    )  # fmt: skip
    return yaml.safe_load(Path(f"studies/{name}.yaml").read_text())


def test_values_that_a_person_sets_are_part_of_the_study(project, photos, capsys):
    study = write(photos, "data.max_images_per_class=4", "ray.cpus_per_trial=2")
    assert study["fixed"]["data.max_images_per_class"] == 4
    said = capsys.readouterr().out
    assert "48: 4 to 4 a class" in said
    # Values of the pipeline are none of the study's: the next commands repeat them.
    assert "dml run birds --until-decided --set ray.cpus_per_trial=2\n" in said


def test_the_fewest_images_still_make_a_study(project, tmp_path):
    for number in range(12):
        draw(tmp_path / "few" / str(number // 2) / f"{number}.png", number)
    assert write(tmp_path / "few")["fixed"]["sampler.samples_per_class"] > 2


def test_another_question_about_the_same_images_compares_other_arms(project, photos):
    study = write(photos, question="dim", name="lengths")
    assert list(study["arms"]) == ["length-16", "length-64", "length-128"]


def test_numbers_instead_of_classes_lead_to_the_log_ratio_question(project, photos, capsys):
    study = write(photos.parent / "angles")
    assert list(study["arms"]) == ["log_ratio", "dense_triplet"]
    assert study["fixed"]["data.continuous_labels"] == ["angle"]
    assert study["question"] == "birds: Which loss ranks images best by their labels?"
    assert "path 'file', continuous labels 'angle' (guessed)" in capsys.readouterr().out


def test_a_second_budget_resumes_and_another_question_is_refused(project, photos, capsys):
    first = write(photos)
    assert write(photos, minutes=90.0) == first
    assert "it resumes, with 90 minutes" in capsys.readouterr().out
    with pytest.raises(ValueError, match=r"studies/birds.yaml is there already"):
        write(photos, question="dim")


def test_a_resumed_study_reserves_what_its_evaluation_took_or_would_take(project, photos):
    write(photos)
    asked = Asked(str(photos), "birds", "loss", 60.0, (), Path("params.yaml"))
    assert REPORT_SECONDS < measure_reserve(asked) < 1e6
    seconds = load_context(asked.request).working_folder / SECONDS_FILE
    seconds.parent.mkdir(parents=True)
    seconds.write_text('{"sweep": 300.0, "evaluate": 12.5}')
    assert measure_reserve(asked) == REPORT_SECONDS + 12.5


def test_the_dataset_of_the_parameters_keeps_its_folder(project, photos):
    """As after: dml data add photos --name birds --write."""
    values = {"name": "folder", "alias": "birds", "raw": str(photos), "image_size_px": 16}
    write_section(Path("params.yaml"), "data", values)
    assert write(photos)["fixed"]["data.alias"] == "birds-asked"


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"name": "my 'best' photos"}, ValueError, r"Got .*Perhaps: --name my-best-photos"),
        ({"name": "../outside"}, ValueError, r"--name must .* Got '../outside'"),
        ({"question": "dims"}, ValueError, r"Did you mean 'dim'"),
        ({"assignment": "loss.name=arcface"}, ValueError, r"--set loss.name .*--only-write"),
        ({"assignment": "data.colour=gray"}, ConfigError, r"Did you mean 'data.color'"),
        ({"minutes": 0.5}, BudgetTooSmall, r"--minutes must be at least \d+: two arms"),
    ],
)
def test_bad_input_is_one_line_and_writes_no_study(project, photos, changes, error, message):
    given = dict(changes)
    assignments = [given.pop("assignment")] if "assignment" in given else []
    with pytest.raises(error, match=message):
        write(photos, *assignments, **given)
    assert not (project / "studies").exists()
    assert not list(project.glob("outside*"))


@pytest.mark.parametrize("minutes", ["0", "inf", "nan", "soon"])
def test_minutes_that_are_no_budget_are_refused_before_anything_is_read(project, minutes):
    done = CliRunner().invoke(app, ["ask", "nowhere", "--minutes", minutes])
    assert done.exit_code == 2
    assert "Invalid value for '--minutes'" in done.output
