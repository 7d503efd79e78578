from dataclasses import replace
from pathlib import Path

import pytest

from flows.doctor.data import (
    check_dataset,
    folder_on_node,
    inspect_data,
    judge_driver,
    judge_node,
)
from tasks.sweep.node_data import describe_data
from tests.references.tiny_trials import prepare_tiny, tiny_config


@pytest.fixture
def config(tmp_path):
    prepare_tiny(tmp_path)
    return tiny_config(tmp_path)


def flip(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def largest_file(folder):
    return max((p for p in folder.rglob("*") if p.is_file()), key=lambda p: p.stat().st_size)


def test_intact_data_match_their_hashes(config):
    finding = check_dataset(config.data, seconds=60)
    assert finding.state == "ok", finding.message
    facts = inspect_data(config.data.prepared_path, seconds=60)
    assert facts.version == describe_data(config)
    assert facts.unchecked_bytes == 0


def test_a_flipped_bit_is_found_and_the_file_named(config):
    damaged = largest_file(config.data.prepared_path)
    flip(damaged)
    finding = check_dataset(config.data, seconds=60)
    assert finding.state == "broken"
    assert f"{damaged} is damaged" in finding.message
    assert "dml prepare" in finding.remedy


def test_a_truncated_file_is_found_without_time_for_hashing(config):
    damaged = largest_file(config.data.prepared_path)
    damaged.write_bytes(damaged.read_bytes()[:-1])
    finding = check_dataset(config.data, seconds=0)
    assert finding.state == "broken"
    assert str(damaged) in finding.message


def test_files_without_time_for_hashing_are_a_warning(config):
    finding = check_dataset(config.data, seconds=-1)
    assert finding.state == "warning"
    assert "not enough time for" in finding.message
    assert "--timeout" in finding.remedy


def test_absent_data_are_a_warning(tmp_path):
    finding = check_dataset(tiny_config(tmp_path).data, seconds=1)
    assert finding.state == "warning"
    assert "not prepared yet" in finding.message


def test_data_of_other_parameters_are_a_warning(config):
    changed = config.data.model_copy(update={"noise": 0.3})
    finding = check_dataset(changed, seconds=60)
    assert finding.state == "warning"
    assert "data.noise was 0.05, and is 0.3 now" in finding.message


def test_a_damaged_list_of_files_is_broken(config):
    (config.data.prepared_path / "dataset.json").write_text("{")
    facts = inspect_data(config.data.prepared_path, seconds=60)
    assert judge_driver(facts).state == "broken"


def test_a_node_with_the_same_data_is_ok_and_one_with_others_is_broken(config):
    facts = inspect_data(config.data.prepared_path, seconds=60)
    same = judge_node("n1", facts, expected=facts.version, mode="shared")
    assert same.state == "ok"
    other = judge_node("n1", facts, expected="0" * 64, mode="shared")
    assert other.state == "broken"
    assert "on node n1 holds" in other.message
    damaged = judge_node("n1", replace(facts, problem="x is damaged"), expected="", mode="dvc")
    assert damaged.state == "broken"
    assert "it is fetched again" in damaged.remedy


def test_a_node_without_data_fetches_them_or_is_broken(tmp_path):
    facts = inspect_data(tmp_path / "absent", seconds=1)
    shared = judge_node("n1", facts, expected="a/b", mode="shared")
    assert shared.state == "broken"
    assert "data_access.mode=dvc" in shared.remedy
    fetching = judge_node("n1", facts, expected="a/b", mode="dvc", free_bytes=2**30)
    assert fetching.state == "ok"
    assert "will fetch the data; 1.0 GiB are free" in fetching.message


def test_a_node_uses_the_drivers_path_or_else_its_fetched_data(config, tmp_path):
    path = config.data.prepared_path
    fetched = {str(path): "/cache/tiny"}
    assert folder_on_node(path, "/", fetched) == path
    missing = tmp_path / "elsewhere"
    assert folder_on_node(missing, "/", {str(missing): "/cache/x"}) == Path("/cache/x")
    assert folder_on_node(missing, "/", {}) == missing


def test_only_development_files_are_checked_if_the_test_images_are_absent(config):
    for path in (config.data.prepared_path / "test").iterdir():
        path.unlink()
    assert inspect_data(config.data.prepared_path, seconds=60).problem
    facts = inspect_data(config.data.prepared_path, seconds=60, development_only=True)
    assert facts.problem == ""
    assert facts.version
