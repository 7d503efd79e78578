"""Which nodes may pack images, and what happens where one may not."""

from pathlib import Path

import pytest

from dml_core.config.pipeline import RayConfig
from dml_core.data.packing import choices_of, pack_record
from tasks import prepare_on_nodes
from tasks.prepare_on_nodes import Probe, find_problem, pack_on_nodes
from tests.references.drawn_datasets import tree_config, write_tree
from tests.references.ray_clusters import free_port


@pytest.fixture
def probe(tmp_path, monkeypatch):
    """A probe of one file, in the working folder."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.png").write_bytes(b"image")
    return Probe(str(tmp_path), {"a.png": 5}, {"numpy": prepare_on_nodes.version("numpy")})


def test_a_node_with_the_same_files_and_libraries_may_pack(probe):
    assert find_problem(probe) == ""


def test_a_node_without_a_file_says_which(probe, tmp_path):
    (tmp_path / "a.png").unlink()
    assert find_problem(probe) == "cannot read a.png: No such file or directory"


def test_a_node_with_another_file_says_which(probe, tmp_path):
    (tmp_path / "a.png").write_bytes(b"other image")
    assert find_problem(probe) == "has another a.png: 11 bytes, not 5"


def test_a_node_with_another_library_says_which(probe):
    probe.versions["numpy"] = "1.0"
    assert "not 1.0, which may decode other pixels" in find_problem(probe)


def pack(record):
    return pack_record(record, root=None, choices=choices_of(tree_config(Path("unused"))))


def test_without_a_cluster_this_machine_packs_and_says_why(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(prepare_on_nodes, "FEW_IMAGES", 1)
    records = write_tree(tmp_path).records
    config = RayConfig(address=f"127.0.0.1:{free_port()}", connect_timeout_seconds=0.2)
    found = list(pack_on_nodes(pack, records, workers=1, chunk_size=4, config=config))
    assert [each.digest for each in found] == [pack(record).digest for record in records]
    assert "packed on this machine alone" in caplog.text
    assert config.address in caplog.text
