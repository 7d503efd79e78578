import numpy as np
import pytest

from dml_core.data.prepared import ImageSet, map_images
from dml_core.evaluation.retrieval_grid import (
    RIGHT_COLOR,
    WRONG_COLOR,
    Retrieval,
    draw_retrieval_grid,
    find_examples,
    save_retrieval_grid,
)


def make_images(tmp_path, labels, *, roles="test", channels=1, sizes=None):
    count = len(labels)
    sizes = np.array(sizes or [(12, 12)] * count)
    lengths = sizes.prod(axis=1) * channels
    offsets = np.concatenate([[0], np.cumsum(lengths)[:-1]])
    file = tmp_path / "images.bin"
    pixels = np.random.default_rng(0).integers(0, 60, lengths.sum(), dtype=np.uint8)
    file.write_bytes(pixels.tobytes())
    return ImageSet(
        packed=map_images(file, offsets, sizes, channels),
        labels=np.array(labels),
        class_names=tuple(f"class {label}" for label in sorted(set(labels))),
        roles=np.array([roles] * count if isinstance(roles, str) else roles),
        paths=[str(index) for index in range(count)],
        continuous=np.empty((count, 0)),
    )


def on_a_line(*positions):
    return np.array([[position, 0.0] for position in positions], dtype=np.float32)


def test_neighbours_are_the_nearest_others_and_judged_by_class(tmp_path):
    images = make_images(tmp_path, [0, 0, 1, 1])
    found = find_examples(
        on_a_line(0, 1, 2.5, 9), images, metric="euclidean", num_queries=4, num_neighbors=2
    )
    rows = dict(zip(found.queries.tolist(), found.neighbors.tolist(), strict=True))
    assert rows == {0: [1, 2], 1: [0, 2], 2: [1, 0], 3: [2, 1]}
    right = dict(zip(found.queries.tolist(), found.is_right.tolist(), strict=True))
    assert right == {0: [True, False], 1: [True, False], 2: [False, False], 3: [True, False]}


def test_queries_are_of_different_classes_and_the_same_for_every_model(tmp_path):
    images = make_images(tmp_path, [0] * 10 + [1] * 10 + [2] * 10)
    streams = [np.random.default_rng(seed) for seed in (1, 2)]
    found = [
        find_examples(stream.normal(size=(30, 4)), images, metric="cosine", num_queries=3)
        for stream in streams
    ]
    assert sorted(images.labels[found[0].queries]) == [0, 1, 2]
    np.testing.assert_array_equal(found[0].queries, found[1].queries)


def test_queries_with_a_gallery_find_gallery_images_only(tmp_path):
    roles = ["query", "query", "gallery", "gallery"]
    images = make_images(tmp_path, [0, 1, 0, 1], roles=roles)
    found = find_examples(on_a_line(0, 1, 5, 6), images, metric="euclidean")
    assert set(found.queries) == {0, 1}
    assert found.neighbors.tolist() == [[2, 3], [2, 3]]


def test_identical_images_are_found_but_never_the_query_itself(tmp_path):
    images = make_images(tmp_path, [0] * 6)
    found = find_examples(np.ones((6, 2)), images, metric="cosine", num_neighbors=3)
    assert found.neighbors.shape == (6, 3)
    assert not (found.neighbors == found.queries[:, None]).any()


def test_a_wrong_number_of_embeddings_is_refused(tmp_path):
    with pytest.raises(ValueError, match="Got 3 embeddings of 2 images"):
        find_examples(np.ones((3, 2)), make_images(tmp_path, [0, 0]), metric="cosine")


@pytest.mark.parametrize(("channels", "sizes"), [(1, None), (3, [(12, 40), (90, 200), (12, 12)])])
def test_right_and_wrong_images_have_frames_of_their_colours(tmp_path, channels, sizes):
    images = make_images(tmp_path, [0, 0, 1], channels=channels, sizes=sizes)
    retrieval = Retrieval(np.array([0]), np.array([[1, 2]]), np.array([[True, False]]))
    picture = draw_retrieval_grid(images, retrieval, title="proxy_anchor \x07 ä", cell_px=40)
    pixels = np.asarray(picture).reshape(-1, 3)
    counts = [int((pixels == color).all(axis=1).sum()) for color in (RIGHT_COLOR, WRONG_COLOR)]
    assert min(counts) > 200
    # The solid frame covers more than the dashed one, which tells them apart without colour.
    assert counts[0] > 1.3 * counts[1]
    path = save_retrieval_grid(picture, tmp_path / "new" / "grid.png")
    assert path.read_bytes().startswith(b"\x89PNG")
