import pytest

from flows.doctor.findings import broken, hide_secrets, in_units, ok, warning


def test_what_is_not_well_must_have_a_remedy():
    assert ok("ray", "fine").remedy == ""
    for make in (broken, warning):
        with pytest.raises(AssertionError, match="no remedy for ray"):
            make("ray", "not fine", "")


def test_a_password_in_an_address_is_struck_out():
    finding = broken("mlflow", "http://ann:hunter2@host:5000/x refuses", "see s3://key@bucket")
    assert finding.message == "http://***@host:5000/x refuses"
    assert finding.remedy == "see s3://***@bucket"


@pytest.mark.parametrize(
    "name",
    [
        "PREFECT_API_AUTH_STRING",
        "PREFECT_API_KEY",
        "RAY_AUTH_TOKEN",
        "AWS_SECRET_ACCESS_KEY",
        "AWS_ACCESS_KEY_ID",
        "MLFLOW_TRACKING_PASSWORD",
        "PGPASSWORD",
    ],
)
def test_a_secret_of_the_environment_is_struck_out_wherever_it_turns_up(name):
    environment = {name: "ann:hunter2", "HOME": "/home/ann"}
    text = hide_secrets("refused: ann:hunter2 at /home/ann", environment=environment)
    assert text == "refused: *** at /home/ann"


def test_the_password_of_user_and_password_is_a_secret_alone_too():
    environment = {"PREFECT_API_AUTH_STRING": "ann:hunter2"}
    assert hide_secrets("hunter2 is wrong", environment=environment) == "*** is wrong"


def test_short_values_and_paths_of_tokens_stay():
    environment = {"X_TOKEN": "1", "RAY_AUTH_TOKEN_PATH": "/etc/token"}
    assert hide_secrets("1 file at /etc/token", environment=environment) == "1 file at /etc/token"


@pytest.mark.parametrize(
    ("num_bytes", "shown"),
    [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (3 * 1024**3, "3.0 GiB"), (2**41, "2.0 TiB")],
)
def test_bytes_are_told_in_units(num_bytes, shown):
    assert in_units(num_bytes) == shown
