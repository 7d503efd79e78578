import pytest

from flows.cli import app
from flows.project_folder import _NEEDS, NoProject, check_project_folder


@pytest.fixture
def project(tmp_path):
    (tmp_path / "params.yaml").write_text("")
    (tmp_path / "studies").mkdir()
    return tmp_path


def test_a_project_folder_passes(project):
    check_project_folder(["run", "main"], project)


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["losses"],
        ["--help"],
        ["run", "--help"],
        ["train", "--params", "other.yaml"],
        ["compare", "--experiment=e"],
    ],
)
def test_what_needs_no_project_passes_anywhere(tmp_path, arguments):
    check_project_folder(arguments, tmp_path)


def test_a_project_above_is_named(project):
    below = project / "data" / "raw"
    below.mkdir(parents=True)
    with pytest.raises(NoProject, match=r"dml plan needs .* is one: cd \.\./\.\.$"):
        check_project_folder(["plan"], below)


def test_every_command_that_is_checked_exists():
    from typer.main import get_command

    assert set(vars(get_command(app))["commands"]) >= _NEEDS
