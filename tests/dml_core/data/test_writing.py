"""Tests of writing a prepared dataset."""

import csv
import hashlib
from dataclasses import replace

import numpy as np
import pyarrow.parquet as pq
import pytest

from dml_core.config.data import FolderData
from dml_core.data import writing as dataset_writing
from dml_core.data import writing as preparation_job
from dml_core.data.image_decoding import PackingChoices
from dml_core.data.packing import pack_record
from dml_core.data.prepared_info import load_info
from dml_core.data.records import DatasetError, ImageRecord
from dml_core.data.splits import load_split, split_classes
from dml_core.data.writing import PartWriter, PreparationJob, Refusals, is_too_many, write_dataset
from tests.references.drawn_datasets import drawn_listing, tree_config


def write(folder, records, **values):
    config = tree_config(folder, color="gray", **values)
    job = PreparationJob(records, None, config, split_classes(records, config), 1, None)
    return write_dataset(folder, job)


def test_each_class_is_in_the_part_that_the_split_says(tmp_path):
    info = write(tmp_path, drawn_listing(num_classes=8).records)
    split = load_split(tmp_path, split_hash=info.split_hash)
    for part, names in (("development", split.development), ("test", split.test)):
        table = pq.read_table(tmp_path / part / "manifest.parquet")
        assert sorted(set(table["class_name"].to_pylist())) == list(names)


def test_the_description_is_written_as_it_is_returned(tmp_path):
    info = write(tmp_path, drawn_listing().records)
    assert load_info(tmp_path) == info
    assert info.channels == 1


def test_a_refused_image_changes_the_content_hash_and_not_the_source_hash(tmp_path, monkeypatch):
    records = drawn_listing().records
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    whole = write(tmp_path / "a", records)

    def refuse_first(record, **options):
        packed = pack_record(record, **options)
        is_first = record.path == records[0].path
        return replace(packed, pixels=None, reason="is odd") if is_first else packed

    # Another version of the image library may refuse an image that this one takes.
    monkeypatch.setattr(dataset_writing, "pack_record", refuse_first)
    partial = write(tmp_path / "b", records, max_refused_fraction=0.5)
    assert (whole.num_refused, partial.num_refused) == (0, 1)
    assert whole.source_hash == partial.source_hash
    assert whole.content_hash != partial.content_hash


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


def make_job(folder, **values):
    config, records = tree_config(folder, **values), drawn_listing().records
    return PreparationJob(records, None, config, split_classes(records, config), 1, None)


def test_a_job_knows_its_packing_and_the_values_with_effect(tmp_path):
    job = make_job(tmp_path, color="gray")
    assert job.choices == PackingChoices(8, "shorter", "gray")
    assert job.values["test_fraction"] == 0.5


def test_results_come_in_the_order_of_the_records(tmp_path):
    job = make_job(tmp_path)
    paths = list(job.run(lambda record: record.path, workers=1))
    assert paths == [record.path for record in job.records]


@pytest.mark.parametrize(("size", "chunk"), [(8, 64), (256, 56), (4096, 1)])
def test_large_images_travel_in_small_chunks(tmp_path, monkeypatch, size, chunk):
    # 16 MiB hold 56 images of 256 x 384 px in colour, and not one of 4096 x 6144 px.
    seen = []

    def note(function, items, *, workers, chunk_size):
        seen.append(chunk_size)
        yield from map(function, items)

    monkeypatch.setattr(preparation_job, "map_in_order", note)
    list(make_job(tmp_path, image_size_px=size).run(lambda record: record, workers=1))
    assert seen == [chunk]


def record(path):
    return ImageRecord(path, "class", "train")


def test_the_first_bad_image_stops_a_strict_preparation():
    refusals = Refusals(FolderData(on_bad_image="fail"), total=1000)
    with pytest.raises(DatasetError, match=r"image 'a/1\.png' is empty\. .*on_bad_image=fail"):
        refusals.add(record("a/1.png"), "is empty")


def test_too_many_refused_images_stop_with_the_numbers_and_first_reasons():
    refusals = Refusals(FolderData(max_refused_fraction=0.02), total=100)
    refusals.add(record("a"), "is empty")
    refusals.add(record("b"), "is truncated")
    with pytest.raises(DatasetError, match=r"3 of 100 images \(3\.00%\)") as caught:
        refusals.add(record("c"), "does not exist")
    assert "data.max_refused_fraction=0.02" in str(caught.value)
    assert str(caught.value).endswith("\n  - a is empty\n  - b is truncated\n  - c does not exist")


@pytest.mark.parametrize(
    ("refused", "share", "expected"),
    [(0, 0.0, False), (1, 0.0, True), (1, 0.01, False), (2, 0.01, True), (100, 1.0, False)],
)
def test_the_limit_itself_is_allowed(refused, share, expected):
    config = FolderData(max_refused_fraction=share)
    assert is_too_many(refused, 100, config) is expected


@pytest.mark.parametrize("start", ["=", "+", "-", "@", "\t", "\r"])
def test_no_cell_starts_a_formula(tmp_path, start):
    refusals = Refusals(FolderData(max_refused_fraction=1), total=2)
    refusals.add(record(f"{start}cmd()"), f"{start}reason")
    refusals.write(tmp_path / "refused.csv")
    with (tmp_path / "refused.csv").open(newline="") as stream:
        rows = list(csv.reader(stream))
    assert rows == [["path", "reason"], [f"'{start}cmd()", f"'{start}reason"]]


def test_odd_names_survive_the_table(tmp_path):
    refusals = Refusals(FolderData(max_refused_fraction=1), total=9)
    refusals.add(record('ü, "quoted"\nline'), "is empty")
    refusals.add(record("not\udcffutf8"), "is empty")
    refusals.write(tmp_path / "refused.csv")
    with (tmp_path / "refused.csv").open(newline="", encoding="utf-8") as stream:
        rows = list(csv.reader(stream))
    assert [row[0] for row in rows[1:]] == ['ü, "quoted"\nline', "not\\udcffutf8"]
    assert refusals.paths == ['ü, "quoted"\nline', "not\udcffutf8"]
