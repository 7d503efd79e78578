"""Tests of the list of problems that a source reports."""

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dml_core.data.records import DatasetError, missing_files, raise_for, shorten_list, shorten_text


def test_nothing_is_raised_without_problems():
    assert raise_for("table.csv", [[], []]) is None


def test_all_kinds_are_listed_with_the_total_and_the_advice():
    with pytest.raises(DatasetError) as caught:
        raise_for("table.csv", [["first."], [], ["second.", "third."]], advice="Mend it.")
    assert str(caught.value) == (
        "table.csv has 3 problem(s):\n  - first.\n  - second.\n  - third.\nMend it."
    )


def test_ten_of_a_kind_are_shown_and_all_are_counted():
    with pytest.raises(DatasetError, match=r"has 1,025 problem\(s\)") as caught:
        raise_for("table.csv", [[f"row {n}." for n in range(1_024)], ["other."]])
    message = str(caught.value)
    assert "row 9." in message
    assert "row 10." not in message
    assert "... and 1,014 more like these (1,024 in all)." in message
    assert message.endswith("- other.")


def test_exactly_ten_are_shown_whole():
    assert shorten_list([str(n) for n in range(10)]) == [str(n) for n in range(10)]


def test_long_values_are_cut():
    assert shorten_text("x" * 200) == "'" + "x" * 76 + "..."
    assert shorten_text("short") == "'short'"


NAMES = st.sampled_from(["a.jpg", "b.jpg", "one/a.jpg", "one/b.jpg", "one", "two/deep/a.jpg"])


@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(asked=st.lists(NAMES, max_size=8))
def test_the_answer_is_that_of_asking_for_each_file(tmp_path: Path, asked: list[str]):
    for name in ("a.jpg", "one/b.jpg"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    files = [tmp_path / name for name in asked]
    assert missing_files(files) == [file for file in files if not file.is_file()]


def test_a_file_in_place_of_a_folder_holds_nothing(tmp_path: Path):
    (tmp_path / "images").touch()
    assert missing_files([tmp_path / "images" / "a.jpg"]) == [tmp_path / "images" / "a.jpg"]


def test_links_count_as_what_they_point_to(tmp_path: Path):
    (tmp_path / "real.jpg").touch()
    (tmp_path / "good.jpg").symlink_to(tmp_path / "real.jpg")
    (tmp_path / "broken.jpg").symlink_to(tmp_path / "nowhere.jpg")
    files = [tmp_path / "good.jpg", tmp_path / "broken.jpg"]
    assert missing_files(files) == [tmp_path / "broken.jpg"]


def test_what_the_system_cannot_look_for_is_missing(tmp_path):
    (tmp_path / "circle").symlink_to("circle")
    files = [tmp_path / ("a" * 300) / "b.jpg", tmp_path / "circle" / "b.jpg"]
    assert missing_files(files) == files
