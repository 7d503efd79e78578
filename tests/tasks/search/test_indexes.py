"""A study's indexes: made with its model, found again, and refused after the model changed."""

import contextlib
import shutil

import numpy as np
import pytest
from PIL import Image

from dml_core.data.prepared import open_test
from dml_core.evaluation.neighbors import NeighborSearch
from dml_core.measures.model_scores import embed_with_checkpoint
from dml_core.training.checkpoint import load_checkpoint
from tasks.export.winner import choose_model
from tasks.search.indexes import build_index, open_index
from tasks.study import load_context
from tests.references.answered_projects import REQUEST


@pytest.fixture
def project(searched_project, tmp_path):
    """A copy that a test may change, as the working directory."""
    folder = tmp_path / "project"
    shutil.copytree(searched_project, folder)
    with contextlib.chdir(folder):
        yield folder


def test_a_search_finds_the_neighbours_of_the_evaluation(searched_project, tmp_path):
    with contextlib.chdir(searched_project):
        context = load_context(REQUEST)
        checkpoint = load_checkpoint(choose_model(context).checkpoint)
        images, _ = open_test(checkpoint.config.data)
        embeddings = embed_with_checkpoint(checkpoint, images)
        # A folder with the test images alone, under the names of the dataset.
        folder = tmp_path / "test images"
        for path in images.paths:
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(searched_project / "photos" / path, folder / path)
        build_index(context, folder)
        opened = open_index(context, folder)
        found = opened.search_files([folder / path for path in images.paths], 6)
    shutil.rmtree(searched_project / "results/flowers/search" / find_name(searched_project, "test"))
    units = embeddings / np.linalg.norm(embeddings, axis=1, keepdims=True)
    for block, neighbors in NeighborSearch(embeddings, metric="cosine")(5):
        for row, near in zip(range(block.start, block.stop), neighbors, strict=True):
            assert found[row][0].path == images.paths[row]
            # By their scores, because the order of ties is arbitrary.
            wanted = units[near] @ units[row]
            np.testing.assert_allclose([each.score for each in found[row][1:]], wanted, atol=1e-5)


def find_name(project, beginning):
    folders = (project / "results/flowers/search").iterdir()
    (name,) = [folder.name for folder in folders if folder.name.startswith(beginning)]
    return name


def test_most_pictures_find_their_own_class_first(searched_project):
    with contextlib.chdir(searched_project):
        opened = open_index(load_context(REQUEST))
    hits = [
        opened.search_indexed(position, 2)[1].path.split("/")[0] == path.split("/")[0]
        for position, path in enumerate(opened.index.files)
    ]
    assert np.mean(hits) > 0.4


def test_an_index_of_another_model_is_refused_until_it_is_rebuilt(project, searched_project):
    context = load_context(REQUEST)
    name = choose_model(context).name
    winners = project / "results/flowers/sweep/winners"
    shutil.copy(winners / "anchor-seed0" / "checkpoint.pt", winners / name / "checkpoint.pt")
    message = rf"made with another model: {name} .*dml index flowers .*photos --rebuild"
    with pytest.raises(ValueError, match=message):
        open_index(context)
    with pytest.raises(ValueError, match=message):
        build_index(context, searched_project / "photos")
    _, changes = build_index(context, searched_project / "photos", rebuild=True)
    assert changes.added == 128
    assert open_index(context).name == name


def test_an_index_of_a_named_arm_stays_with_it(project, searched_project):
    context = load_context(REQUEST)
    build_index(context, searched_project / "photos", arm="anchor", seed=1, rebuild=True)
    assert open_index(context).name == "anchor-seed1"


def test_which_index_is_meant_must_be_clear(project, tmp_path):
    context = load_context(REQUEST)
    other = tmp_path / "other"
    other.mkdir()
    with pytest.raises(ValueError, match=r"no index of .*other yet\. Make it: dml index flowers"):
        open_index(context, other)
    Image.new("RGB", (50, 50)).save(other / "a.png")
    build_index(context, other)
    with pytest.raises(ValueError, match=r"has 2 indexes\. Choose one with --folder: .*other"):
        open_index(context)
    assert len(open_index(context, other).index) == 1
    shutil.rmtree(project / "results/flowers/search")
    with pytest.raises(ValueError, match=r"has no index yet.*dml index flowers FOLDER"):
        open_index(context)
