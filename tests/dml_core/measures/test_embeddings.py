"""Tests of the files and the map of embeddings."""

import csv
from types import SimpleNamespace

import faiss
import numpy as np
import pytest

from dml_core.data.spreadsheet_cells import restore_cell
from dml_core.measures.embeddings import make_embedding_map, write_embedding_map, write_embeddings
from tests.references.retrieval import rank_gallery


@pytest.mark.parametrize("metric", ["cosine", "euclidean"])
def test_the_index_finds_what_the_metric_calls_near(tmp_path, metric):
    random = np.random.default_rng(0)
    embeddings = random.normal(size=(20, 3)).astype(np.float32) * random.uniform(1, 9, (20, 1))
    write_embeddings(embeddings, tmp_path, metric=metric)
    kept = np.load(tmp_path / "embeddings.npy")
    assert kept.dtype == np.float32
    np.testing.assert_array_equal(kept, embeddings.astype(np.float32))
    index = faiss.read_index(str(tmp_path / "index.faiss"))
    queries = random.normal(size=(5, 3)).astype(np.float32)
    if metric == "cosine":
        queries /= np.linalg.norm(queries, axis=1, keepdims=True)
    _, found = index.search(queries, 20)
    assert found.tolist() == rank_gallery(queries, embeddings, metric=metric)


def make_images(num_classes, per_class):
    names = [f"class {number}" for number in range(num_classes)]
    labels = np.tile(np.arange(num_classes), per_class)
    return SimpleNamespace(labels=labels, class_names=tuple(names))


def make_clusters(images, *, dim=60):
    random = np.random.default_rng(0)
    centers = random.normal(size=(len(images.class_names), dim))
    noise = 0.05 * random.normal(size=(len(images.labels), dim))
    return (centers[images.labels] + noise).astype(np.float32)


def test_images_of_a_class_lie_together():
    images = make_images(4, 12)
    drawn = make_embedding_map(make_clusters(images), images, metric="cosine")
    labels = images.labels[drawn.images]
    assert sorted(drawn.images) == list(range(48))
    for point, label in zip(drawn.points, labels, strict=True):
        distances = np.linalg.norm(drawn.points - point, axis=1)
        assert (labels[np.argsort(distances)[1:6]] == label).all()


def test_the_same_embeddings_give_the_same_map():
    images = make_images(5, 8)
    maps = [make_embedding_map(make_clusters(images), images, metric="euclidean") for _ in range(2)]
    np.testing.assert_array_equal(maps[0].points, maps[1].points)


def test_few_classes_with_equally_many_images_are_shown():
    images = make_images(30, 10)
    knobs = {"metric": "cosine", "max_classes": 6, "max_images": 24}
    drawn = make_embedding_map(make_clusters(images), images, **knobs)
    _, counts = np.unique(images.labels[drawn.images], return_counts=True)
    assert counts.tolist() == [4] * 6
    # Another model shows the same images.
    other = make_embedding_map(make_clusters(images)[:, ::-1] ** 2, images, **knobs)
    np.testing.assert_array_equal(drawn.images, other.images)


@pytest.mark.parametrize(("per_class", "dim"), [(1, 1), (1, 3), (6, 1), (12, 2)])
def test_few_images_and_dimensions_still_have_a_map(per_class, dim):
    images = make_images(2, per_class)
    drawn = make_embedding_map(make_clusters(images, dim=dim), images, metric="euclidean")
    assert drawn.points.shape == (2 * per_class, 2)
    assert np.isfinite(drawn.points).all()


def test_equal_embeddings_lie_on_one_point():
    images = make_images(3, 8)
    drawn = make_embedding_map(np.ones((24, 5), dtype=np.float32), images, metric="cosine")
    np.testing.assert_allclose(drawn.points, 0, atol=1e-9)


def test_names_from_data_survive_the_file(tmp_path):
    images = make_images(2, 2)
    images.class_names = ('a, "b"', "line\nbreak")
    drawn = make_embedding_map(make_clusters(images, dim=3), images, metric="cosine")
    path = write_embedding_map(drawn, images, tmp_path / "new" / "map.csv")
    with open(path, encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert list(rows[0]) == ["x", "y", "class"]
    assert [row["class"] for row in rows] == ['a, "b"'] * 2 + ["line\nbreak"] * 2
    found = [[float(row["x"]), float(row["y"])] for row in rows]
    np.testing.assert_allclose(found, drawn.points, atol=1e-4)


def test_no_class_is_a_formula_in_the_file(tmp_path):
    images = make_images(2, 2)
    images.class_names = ('=HYPERLINK("http://evil","x")', "-2 to -1")
    drawn = make_embedding_map(make_clusters(images, dim=3), images, metric="cosine")
    path = write_embedding_map(drawn, images, tmp_path / "map.csv")
    with open(path, encoding="utf-8", newline="") as file:
        names = [row["class"] for row in csv.DictReader(file)]
    assert all(name[0] == "'" for name in names)
    assert list(dict.fromkeys(map(restore_cell, names))) == list(images.class_names)
