"""Tests of what holds one preparation together."""

import pytest

from dml_core.data import writing as preparation_job
from dml_core.data.packing import PackingChoices
from dml_core.data.splits import split_classes
from dml_core.data.writing import PreparationJob
from tests.references.drawn_datasets import drawn_listing, tree_config


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
