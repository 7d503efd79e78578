from pathlib import Path

import pytest

from dml_core.config import ConfigError
from dml_core.studies.loading import load_study
from tasks import study as study_module
from tasks.report import write_report
from tasks.study import StudyRequest, UnknownStudy, load_context, pin_files
from tasks.watch import watch
from tests.references.made_up_results import make_results

STUDY = """
question: Which of two losses?
arms: {anchor: {loss.name: proxy_anchor}, triplet: {loss.name: triplet}}
seeds: [0, 1]
"""


@pytest.mark.parametrize(
    ("knobs", "name"),
    [
        ({}, "batch"),
        ({"profile": "quick"}, "batch"),
        ({"profile": "smoke"}, "batch@smoke"),
    ],
)
def test_each_profile_has_its_own_folders_and_quick_is_the_file_itself(knobs, name):
    assert StudyRequest(study="batch", **knobs).folder_name == name


def test_overrides_have_their_own_folders_with_and_without_the_quick_profile():
    plain = StudyRequest(study="batch", overrides=("seed=1",)).folder_name
    assert plain.startswith("batch@")
    assert StudyRequest(study="batch", profile="quick", overrides=("seed=1",)).folder_name == plain


@pytest.mark.parametrize("name", ["../main", "/etc/main", "a/b", "..", "", "main\n", "<script>"])
def test_a_study_named_by_a_path_is_refused_before_anything_is_read(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=r"must be the name of a file in studies/"):
        load_context(StudyRequest(study=name))


@pytest.mark.parametrize(
    ("name", "advice"),
    [
        ("aksed", r"no study 'aksed' in studies/\. Did you mean 'asked'\?"),
        ("zzz", r"There are: asked\."),
        ("asked@smoke", r"A profile is an option: asked --profile smoke"),
    ],
)
def test_an_unknown_study_is_answered_with_the_nearest(parses, name, advice):
    with pytest.raises(UnknownStudy, match=advice):
        load_context(StudyRequest(study=name))


@pytest.fixture
def parses(tmp_path, monkeypatch):
    """A project with one study, and the list of the studies that were parsed since."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "params.yaml").write_text("")
    (tmp_path / "studies").mkdir()
    (tmp_path / "studies" / "asked.yaml").write_text(STUDY)
    counted = []

    def count(path, *arguments, **named):
        counted.append(path.stem)
        return load_study(path, *arguments, **named)

    monkeypatch.setattr(study_module, "load_study", count)
    study_module._parse_study.cache_clear()
    return counted


def test_all_steps_of_a_run_parse_the_study_once(parses):
    request = StudyRequest(study="asked")
    make_results(request)
    pinned = pin_files(request)
    write_report.fn(pinned, "")
    watch(load_context(pinned), promote=False)
    assert parses == ["asked"]


def test_an_edited_file_is_parsed_anew_unless_the_request_is_pinned(parses):
    request = StudyRequest(study="asked")
    pinned = pin_files(request)
    assert load_context(request).study.seeds == (0, 1)
    Path("studies/asked.yaml").write_text(STUDY.replace("[0, 1]", "[0, 1, 2]"))
    assert load_context(request).study.seeds == (0, 1, 2)
    assert load_context(pinned).study.seeds == (0, 1)
    assert pin_files(pinned).study_text != pinned.study_text
    assert parses == ["asked", "asked"]


def test_a_mistake_is_reported_each_time(parses):
    request = StudyRequest(study="asked")
    Path("studies/asked.yaml").write_text(STUDY.replace("seeds", "seedz"))
    for _ in range(2):
        with pytest.raises(ConfigError, match="seedz"):
            load_context(request)
    assert parses == ["asked", "asked"]
