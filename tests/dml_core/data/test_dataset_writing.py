"""Tests of writing a prepared dataset into a folder."""

from dataclasses import replace

import pyarrow.parquet as pq

from dml_core.data import writing as dataset_writing
from dml_core.data.packing import pack_record
from dml_core.data.prepared_info import load_info
from dml_core.data.splits import load_split, split_classes
from dml_core.data.writing import PreparationJob, write_dataset
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
