"""Missing files are found by scanning folders."""

from pathlib import Path

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dml_core.data.records import missing_files

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
