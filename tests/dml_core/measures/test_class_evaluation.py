"""Scores by class of embeddings, and the picture of the worst classes."""

import numpy as np
import pytest
from PIL import Image

from dml_core.data.prepared import ImageSet, map_images
from dml_core.evaluation.evaluate import evaluate_embeddings
from dml_core.measures.class_evaluation import score_classes, write_classes
from dml_core.measures.class_scores import read_classes

NAMES = ("bird", "cat", "dog", "single")


def make_images(folder, labels, roles="test"):
    count = len(labels)
    file = folder / "images.bin"
    file.write_bytes(np.random.default_rng(0).integers(0, 255, count * 64, np.uint8).tobytes())
    return ImageSet(
        packed=map_images(file, 64 * np.arange(count), np.full((count, 2), 8), 1),
        labels=np.array(labels),
        class_names=NAMES,
        roles=np.array([roles] * count if isinstance(roles, str) else roles),
        paths=[str(number) for number in range(count)],
        continuous=np.empty((count, 0)),
    )


def on_a_line(*positions):
    return np.array([[position, 0.0] for position in positions], dtype=np.float32)


def test_worked_value(tmp_path):
    # Birds at 0, 1 find each other; the cat at 10 finds a dog, the cat at 20 the cat at 10.2.
    images = make_images(tmp_path, [0, 0, 1, 2, 1, 1, 2, 3])
    embeddings = on_a_line(0, 1, 10, 9.9, 20, 15, 9.7, 40)
    scores, failures = score_classes(embeddings, images, metric="euclidean")
    found = {s.name: (s.num_images, s.num_queries, s.recall_at_1, s.found_instead) for s in scores}
    # Cat 10 finds dog 9.9; cats 20 and 15 find each other or 10: nearest of 15 is 20 or 10, a cat.
    # Dog 9.9 finds cat 10 at 0.1, dog 9.7 finds dog 9.9. The single image has nothing to find.
    assert found == {
        "bird": (2, 2, 1.0, ""),
        "cat": (3, 3, pytest.approx(2 / 3), "dog"),
        "dog": (2, 2, 0.5, "cat"),
    }
    assert failures == {"cat": 2, "dog": 3}


@pytest.mark.parametrize("has_roles", [False, True])
def test_the_mean_over_queries_is_recall_at_1(tmp_path, has_roles):
    random = np.random.default_rng(1)
    labels = random.integers(0, 4, 60)
    roles = np.where(np.arange(60) % 3 == 0, "query", "gallery") if has_roles else "test"
    images = make_images(tmp_path, labels, roles)
    embeddings = random.normal(size=(60, 3)).astype(np.float32)
    scores, failures = score_classes(embeddings, images, metric="cosine")
    total = sum(score.recall_at_1 * score.num_queries for score in scores)
    whole = evaluate_embeddings(
        embeddings, labels, roles=images.roles, metric="cosine", clustering=False
    )
    assert sum(score.num_queries for score in scores) == whole["num_queries"]
    assert total / whole["num_queries"] == pytest.approx(whole["recall_at_1"])
    for name, row in failures.items():
        assert images.class_names[images.labels[row]] == name
        assert not has_roles or images.roles[row] == "query"


def test_files_are_written_with_a_row_for_each_bad_class(tmp_path):
    images = make_images(tmp_path, [0, 0, 1, 1, 2, 2])
    write_classes(on_a_line(0, 10, 0.1, 10.1, 5, 5.1), images, tmp_path, metric="euclidean")
    assert [(s.name, s.recall_at_1) for s in read_classes(tmp_path)] == [
        ("bird", 0.0), ("cat", 0.0), ("dog", 1.0),
    ]  # fmt: skip
    with Image.open(tmp_path / "worst_classes.png") as picture:
        # Two rows of a name and images of 72 pixels with frames; not three.
        assert 2 * 100 < picture.height < 3 * 100


def test_nothing_is_drawn_where_nothing_fails_and_nothing_written_without_a_query(tmp_path):
    images = make_images(tmp_path, [0, 0, 1, 1])
    write_classes(on_a_line(0, 1, 10, 11), images, tmp_path / "right", metric="euclidean")
    assert [path.name for path in (tmp_path / "right").iterdir()] == ["classes.csv"]
    images = make_images(tmp_path, [0, 1, 2, 3])
    write_classes(on_a_line(0, 1, 10, 11), images, tmp_path / "singles", metric="euclidean")
    assert not (tmp_path / "singles").exists()
