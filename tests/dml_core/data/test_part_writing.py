"""Tests of writing one part of a prepared dataset."""

import hashlib

import numpy as np
import pyarrow.parquet as pq

from dml_core.data.records import ImageRecord
from dml_core.data.writing import PartWriter


def test_images_lie_one_after_another_and_the_manifest_says_where(tmp_path):
    writer = PartWriter(tmp_path / "test", ["angle"])
    first = np.arange(12, dtype=np.uint8).reshape(2, 2, 3)
    second = np.arange(18, dtype=np.uint8).reshape(3, 2, 3)[::-1]
    writer.add(ImageRecord("p/1", "zebra", "test", continuous={"angle": 1}), "query", first)
    writer.add(ImageRecord("p/2", "ant", "test", continuous={"angle": 2.5}), "gallery", second)
    digests = writer.finish()
    content = (tmp_path / "test" / "images.bin").read_bytes()
    assert content == first.tobytes() + second.tobytes()
    assert digests == {
        "test/images.bin": hashlib.sha256(content).hexdigest(),
        "test/manifest.parquet": "",
    }
    table = pq.read_table(tmp_path / "test" / "manifest.parquet")
    assert table.to_pydict() == {
        "path": ["p/1", "p/2"],
        "class_name": ["zebra", "ant"],
        "label": [1, 0],
        "role": ["query", "gallery"],
        "offset": [0, 12],
        "height": [2, 3],
        "width": [2, 2],
        "continuous.angle": [1.0, 2.5],
    }
    assert [str(table.schema.field(name).type) for name in ("label", "offset")] == ["int64"] * 2
    assert str(table.schema.field("continuous.angle").type) == "double"


def test_a_continuous_column_may_have_the_name_of_another(tmp_path):
    writer = PartWriter(tmp_path / "test", ["height"])
    record = ImageRecord("p", "a", "test", continuous={"height": 7.5})
    writer.add(record, "test", np.zeros((2, 3, 1), dtype=np.uint8))
    writer.finish()
    table = pq.read_table(tmp_path / "test" / "manifest.parquet")
    assert table["height"].to_pylist() == [2]
    assert table["continuous.height"].to_pylist() == [7.5]


def test_images_of_each_class_are_counted(tmp_path):
    writer = PartWriter(tmp_path / "test", [])
    for name in ("a", "b", "a"):
        writer.add(ImageRecord(name, name, "test"), "test", np.zeros((2, 2, 1), dtype=np.uint8))
    writer.close()
    assert writer.class_counts == {"a": 2, "b": 1}


def test_removed_images_leave_no_gap(tmp_path):
    writer = PartWriter(tmp_path / "development", [])
    images = {name: np.full((2, size, 1), size, np.uint8) for size, name in enumerate("abcd", 2)}
    for name, pixels in images.items():
        writer.add(ImageRecord(name, f"class {name}", "train"), "train", pixels)
    assert writer.read(1) == images["b"].tobytes()
    writer.remove({"a", "c"})
    assert writer.read(1) == images["d"].tobytes()
    digest = writer.finish()["development/images.bin"]
    content = (tmp_path / "development" / "images.bin").read_bytes()
    assert content == images["b"].tobytes() + images["d"].tobytes()
    assert digest == hashlib.sha256(content).hexdigest()
    table = pq.read_table(tmp_path / "development" / "manifest.parquet")
    assert table["path"].to_pylist() == ["b", "d"]
    assert table["offset"].to_pylist() == [0, len(images["b"].tobytes())]
    assert table["label"].to_pylist() == [0, 1]
    assert writer.class_counts == {"class b": 1, "class d": 1}
