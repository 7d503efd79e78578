from pathlib import Path

import pytest

from dml_core.config.pipeline import DataAccessConfig
from tasks.sweep.node_data import describe_data, open_once, provide_data, remember_sources
from tasks.versioning.remote import push_data
from tasks.versioning.repo import commit_stage
from tasks.versioning.session import DvcError
from tests.references.dvc_projects import make_project, run_dvc
from tests.references.tiny_trials import prepare_tiny, tiny_config

PREPARED = Path("data/prepared")


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    """A project whose tiny dataset is in a remote."""
    folder = make_project(tmp_path_factory.mktemp("project"), studies=("a",))
    prepare_tiny(folder / PREPARED)
    commit_stage(folder, "prepare")
    run_dvc(folder, "remote", "add", "--default", "storage", "../storage-of-nodes")
    push_data(folder)
    return folder


@pytest.fixture
def find_source(project, tmp_path, monkeypatch):
    """Where nodes fetch from, as the driver says it in its project."""
    monkeypatch.chdir(project)
    return remember_sources(DataAccessConfig(mode="dvc", cache_root=str(tmp_path / "cache")))


def test_a_node_that_has_the_data_reads_them_in_place(find_source, tmp_path):
    config = tiny_config(PREPARED)
    found = provide_data(config, find_source(config), expected=describe_data(config))
    assert found == config
    assert not (tmp_path / "cache").exists()


def test_a_node_with_no_or_other_data_fetches_those_of_the_driver(
    find_source, tmp_path, monkeypatch
):
    config = tiny_config(PREPARED)
    expected, source = describe_data(config), find_source(config)
    monkeypatch.chdir(tmp_path)
    # The node has a folder of that name, from another project.
    prepare_tiny(tmp_path / PREPARED, data__draw_seed=5)
    found = provide_data(config, source, expected=expected)
    assert found.data.prepared_path.is_relative_to(tmp_path / "cache")
    assert describe_data(found) == expected
    assert len(open_once(found, expected=expected).train) > 0


def test_a_node_whose_own_data_are_damaged_fetches_whole_ones(find_source, tmp_path, monkeypatch):
    config = tiny_config(PREPARED)
    expected, source = describe_data(config), find_source(config)
    monkeypatch.chdir(tmp_path)
    prepare_tiny(tmp_path / PREPARED)
    (tmp_path / PREPARED / "glyphs" / "splits.json").write_bytes(b"{}")
    found = provide_data(config, source, expected=expected)
    assert found.data.prepared_path.is_relative_to(tmp_path / "cache")
    assert len(open_once(found, expected=expected).train) > 0


def test_data_prepared_again_since_the_commit_are_refused(find_source, tmp_path, monkeypatch):
    config = tiny_config(PREPARED)
    source = find_source(config)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(
        ValueError, match=r"started with, a/b\. Got .*dvc commit prepare, then: dml"
    ):
        provide_data(config, source, expected="a/b")


def test_a_dataset_of_a_studys_own_has_no_version_to_fetch(find_source):
    config = tiny_config(PREPARED, data__alias="few")
    with pytest.raises(DvcError, match=r"no version of data/prepared/few.*data_access.mode=shared"):
        find_source(config)


def test_shared_data_have_no_source():
    assert remember_sources(DataAccessConfig())(tiny_config(PREPARED)) == {}
