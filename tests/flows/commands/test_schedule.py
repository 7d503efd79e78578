"""What `dml schedule` finds wrong before it asks a server: there is none in these tests."""

import pytest

from flows.commands.schedule import check_request
from tests.references.running_servers import run_dml
from tests.references.tiny_projects import TWO_ARMS, make_project

EVERY_NIGHT = "0 2 * * *"


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    """A project with a sound study, a wrong one, and one that dvc.yaml does not list."""
    folder = make_project(tmp_path_factory.mktemp("alone") / "project", {"often": TWO_ARMS})
    wrong = TWO_ARMS + "trials_per_arms: 3\nfixed: {sampler.batch_sise: 16}\n"
    (folder / "studies" / "wrong.yaml").write_text(wrong, encoding="utf-8")
    return folder


@pytest.fixture
def check(project, monkeypatch):
    """Checks a request in the project and returns what is said against it."""
    monkeypatch.chdir(project)
    monkeypatch.setenv("PREFECT_HOME", str(project / ".dml" / "prefect"))

    def messages(study, *, cron=EVERY_NIGHT, profile=None):
        with pytest.raises(ValueError, match=r"\w") as caught:
            check_request(study, profile=profile, cron=cron, folder=project)
        return str(caught.value)

    return messages


def test_a_sound_request_passes(project, check):
    check_request("often", profile=None, cron=EVERY_NIGHT, folder=project)


def test_a_wrong_time_is_reported(check):
    assert "--cron '61 * * * *' never comes due" in check("often", cron="61 * * * *")


def test_problems_of_study_and_time_are_reported_together(check):
    said = check("offen", cron="0 2 * *")
    assert "Did you mean 'often'?" in said
    assert "Got '0 2 * *' with 4" in said


def test_every_problem_of_a_study_is_reported(check):
    said = check("wrong")
    assert "trials_per_arms" in said
    assert "sampler.batch_sise" in said


def test_an_unknown_profile_is_reported(check):
    assert "smok" in check("often", profile="smok")


@pytest.mark.integration
def test_without_a_server_the_message_says_how_to_get_one(project):
    done = run_dml(project, "schedule", "often", "--cron", EVERY_NIGHT)
    assert done.returncode == 2
    assert "Run: dml up --worker" in done.stderr
    gone = "http://user:secret@127.0.0.1:9/api"
    done = run_dml(project, "schedules", PREFECT_API_URL=gone)
    assert done.returncode == 2
    assert "the Prefect server at http://127.0.0.1:9/api" in done.stderr
    assert "secret" not in done.stderr
    wrong = run_dml(project, "schedule", "wrong", "--cron", EVERY_NIGHT)
    assert wrong.returncode == 2
    assert "Traceback" not in wrong.stderr
    assert "dml up" not in wrong.stderr
