"""dml explain: keys, sections and unknown names."""

from pathlib import Path

from typer.testing import CliRunner

from flows.cli import app

PARAMS = Path(__file__).parents[3] / "params.yaml"


def explain(*arguments: str) -> str:
    done = CliRunner().invoke(app, ["explain", *arguments], env={"COLUMNS": "200"})
    assert done.exit_code == 0, done.output
    return done.output


def test_a_key_is_explained_with_the_value_of_the_file(tmp_path):
    path = tmp_path / "params.yaml"
    path.write_text(PARAMS.read_text().replace("alpha: 32.0", "alpha: 24.0"))
    shown = explain("loss.alpha", "--params", str(path))
    assert "loss.alpha (proxy_anchor)\n    Sharpness: factor on the cosine." in shown
    assert "number, > 0 and <= 1000; default 32.0" in shown
    assert "has 24.0" in shown
    # The other loss with such a knob.
    assert "loss.alpha (multi_similarity)" in shown
    assert "has loss.name=proxy_anchor" in shown


def test_a_section_has_a_line_for_each_key(tmp_path):
    path = tmp_path / "params.yaml"
    path.write_text(PARAMS.read_text().replace("epochs: 12", "epochs: 30"))
    lines = explain("training", "--params", str(path)).splitlines()
    assert lines[0].startswith("training.epochs = 12  Number of epochs")
    assert lines[0].endswith("(set to 30)")
    assert not any("set to" in line for line in lines[1:])


def test_without_a_key_the_sections_are_listed_and_no_project_is_needed(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert {"loss", "ray", "study"} <= {line.split()[0] for line in explain().splitlines()}
    assert "set in studies/NAME.yaml" in explain("trials_per_arm")


def test_an_unknown_key_is_refused_with_the_nearest():
    done = CliRunner().invoke(app, ["explain", "loss.alhpa"])
    assert done.exit_code != 0
    assert "Nearest: loss.alpha" in str(done.exception)
