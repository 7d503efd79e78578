"""The index of a folder follows its files, embeds each once, and survives an interruption."""

import os
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from dml_core.data.image_decoding import BadImage, decode_image
from dml_core.retrieval.folder_index import FACTS_FILE, FolderIndex, read_facts
from dml_core.retrieval.updating import update_index


class ColorEmbedder:
    """Embeds an image as its mean colour, and notes what it was given."""

    metric = "euclidean"
    batch_size = 4

    def __init__(self, *, fails_after=None):
        self.seen = []
        self.fails_after = fails_after

    def prepare(self, image):
        content = Path(image).read_bytes()
        if not content:
            raise BadImage("is empty (zero bytes)")
        pixels = decode_image(content, color="rgb")
        self.seen.append(Path(image).name)
        if self.fails_after is not None and len(self.seen) > self.fails_after:
            raise KeyboardInterrupt
        return pixels[:2, :2]

    def embed(self, pixels):
        return pixels.reshape(len(pixels), -1, 3).mean(axis=1).astype(np.float32)


def write_image(path, color):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (8, 6), color).save(path)


@pytest.fixture
def photos(tmp_path):
    """Ten images of one colour each, in two folders."""
    for number in range(10):
        write_image(tmp_path / "photos" / f"f{number % 2}" / f"{number}.png", (20 * number, 0, 0))
    return tmp_path / "photos"


@pytest.fixture
def run(tmp_path, photos):
    """Brings the stored index up to date, as the command does, and returns it."""
    target, model = tmp_path / "index", tmp_path / "model"
    model.mkdir()
    (model / "facts.json").write_text("{}")

    def update(embedder=None, **options):
        is_there = (target / FACTS_FILE).is_file()
        index = FolderIndex.load(target) if is_there else FolderIndex(photos, "euclidean", {"m": 1})
        given = embedder or ColorEmbedder()
        changes = update_index(
            index, given, save=lambda: index.save(target, model=model), **options
        )
        return FolderIndex.load(target), changes, given.seen

    update.target = target
    return update


def nearest(index, color, count=1):
    (found,) = index.search(np.array([color], np.float32), count)
    return [each.path for each in found]


def test_only_new_and_changed_files_are_embedded_and_deleted_ones_are_dropped(run, photos):
    index, changes, seen = run()
    assert (changes.added, len(seen), len(index)) == (10, 10, 10)
    assert nearest(index, (61, 0, 0)) == ["f1/3.png"]
    _, changes, seen = run()
    assert (changes.kept, changes.added, seen) == (10, 0, [])
    write_image(photos / "new.png", (0, 200, 0))
    write_image(photos / "f1" / "3.png", (0, 0, 255))
    os.utime(photos / "f1" / "3.png", ns=(1, 1))
    (photos / "f0" / "4.png").unlink()
    index, changes, seen = run()
    assert (changes.added, changes.changed, changes.removed, changes.kept) == (1, 1, 1, 8)
    assert sorted(seen) == ["3.png", "new.png"]
    assert nearest(index, (0, 0, 250)) == ["f1/3.png"]
    assert nearest(index, (0, 190, 0)) == ["new.png"]
    assert nearest(index, (61, 0, 0)) != ["f1/3.png"]
    assert sorted(index.files) == sorted(
        str(path.relative_to(photos)) for path in photos.rglob("*.png")
    )


def test_unreadable_files_are_named_with_their_reason_and_tried_once(run, photos):
    (photos / "empty.jpg").write_bytes(b"")
    (photos / "phone.heic").write_bytes(b"\0\0\0\x18ftypheic\0\0\0\0")
    (photos / "text.png").write_bytes(b"hello")
    index, _, _ = run()
    reasons = {path: reason for path, (_, reason) in index.unreadable.items()}
    assert reasons["empty.jpg"] == "is empty (zero bytes)"
    assert "is a HEIC image" in reasons["phone.heic"]
    assert "is not an image of a known format" in reasons["text.png"]
    assert len(index) == 10
    assert read_facts(run.target)["unreadable"] == 3
    index, changes, _ = run()
    assert changes.added == 0
    assert len(index.unreadable) == 3
    write_image(photos / "text.png", (255, 255, 255))
    index, changes, _ = run()
    assert changes.changed == 1
    assert nearest(index, (250, 250, 250)) == ["text.png"]


def test_an_interrupted_update_leaves_the_last_save_and_resumes(run):
    with pytest.raises(KeyboardInterrupt):
        run(ColorEmbedder(fails_after=8), save_every=4)
    index = FolderIndex.load(run.target)
    assert 4 <= len(index) < 10
    assert not list(run.target.parent.glob(".index.*"))
    index, changes, seen = run()
    assert len(index) == 10
    assert changes.kept + len(seen) == 10


def test_the_kind_of_index_follows_the_number_of_images(run, photos):
    index, _, _ = run(exact_below=10)
    assert index.vectors.kind == "hnsw"
    assert read_facts(run.target)["recall"] == 1.0
    index, _, seen = run(exact_below=11)
    assert (index.vectors.kind, seen) == ("flat", [])
    index, _, _ = run(exact_below=10)
    assert index.vectors.kind == "hnsw"
    assert nearest(index, (61, 0, 0)) == ["f1/3.png"]
    (photos / "f1" / "3.png").unlink()
    index, _, _ = run(exact_below=10)
    assert index.vectors.kind == "flat"
    assert nearest(index, (61, 0, 0)) in (["f0/2.png"], ["f0/4.png"])


def test_progress_counts_every_image_once(run):
    told = []
    run(on_progress=lambda done, total: told.append((done, total)))
    assert told[0] == (0, 10)
    assert told[-1] == (10, 10)
    assert [done for done, _ in told] == sorted(done for done, _ in told)


def test_a_folder_without_a_readable_image_gives_an_empty_index(run, photos):
    for path in photos.rglob("*.png"):
        path.write_bytes(b"broken")
    index, _, _ = run()
    assert (len(index), len(index.unreadable)) == (0, 10)
    assert nearest(index, (0, 0, 0)) == []


def test_a_damaged_index_is_named_with_the_remedy(run):
    run()
    (run.target / FACTS_FILE).write_text("{")
    with pytest.raises(ValueError, match=r"index cannot be used: .*dml index --rebuild"):
        FolderIndex.load(run.target)
