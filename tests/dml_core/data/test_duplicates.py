"""Tests of finding duplicates."""

import csv
import shutil
from dataclasses import replace

import numpy as np
import pytest
from PIL import Image, ImageFilter

from dml_core.config.data import Cub200Data
from dml_core.data.duplicates import (
    ACROSS_CLASSES,
    ACROSS_SPLITS,
    MAX_HASH_DISTANCE,
    MIN_SIMILARITY,
    WITHIN_CLASS,
    Place,
    compute_fingerprint,
    describe_duplicates,
    find_similar_names,
    hash_fingerprints,
    leaks_file,
)
from dml_core.data.prepare import prepare_dataset
from dml_core.data.prepared import open_development, open_test
from dml_core.data.records import DatasetError, ImageRecord
from tests.references.drawn_datasets import tree_config, write_tree

# Of six classes the last three are the test; of the others c00 is for validation.
TRAIN, TEST = "c01", "c05"
NONE = {ACROSS_SPLITS: 0, WITHIN_CLASS: 0, ACROSS_CLASSES: 0}


def prepare(listing, config, workers=1):
    return prepare_dataset(listing, config, workers=workers)


def copy_image(root, source, target):
    """The one image gets the bytes of the other."""
    shutil.copyfile(root / source, root / target)


def read_rows(file):
    with file.open(encoding="utf-8", newline="") as stream:
        return list(csv.DictReader(stream))


def split_paths(config):
    data = open_development(config)
    return data.train.paths, data.validation.paths, open_test(config)[0].paths


@pytest.fixture
def tree(tmp_path):
    """Six classes of three images that are all different."""
    return write_tree(tmp_path / "raw")


@pytest.fixture
def leaking(tree):
    """One image of the training side is also in the test."""
    copy_image(tree.root, f"{TEST}/1.png", f"{TRAIN}/2.png")
    return tree


def test_different_images_are_no_copies(tree, tmp_path):
    config = tree_config(tmp_path)
    info = prepare(tree, config)
    assert info.duplicates == {
        "equal": NONE,
        "alike": NONE,
        "dropped": 0,
        "similar_class_names": [],
    }
    assert read_rows(config.prepared_path / "duplicates.csv") == []
    assert describe_duplicates(info.duplicates) == []


def test_all_test_images_as_copies_of_training_images_are_refused(tree, tmp_path):
    for label in range(3):
        for number in range(3):
            copy_image(tree.root, f"c{label:02d}/{number}.png", f"c{label + 3:02d}/{number}.png")
    config = tree_config(tmp_path)
    with pytest.raises(DatasetError, match=r"an image in two of train, validation and test") as e:
        prepare(tree, config)
    message = str(e.value)
    assert "Found 9 copies, all listed in" in message
    assert str(leaks_file(config)) in message
    assert "'c01/0.png' (train) and 'c04/0.png' (test): same bytes" in message
    # The first five pairs are named, no more.
    assert message.count("\n  - ") == 5
    assert "'c00/0.png' (validation) and 'c03/0.png' (test): same bytes" in message
    assert not config.prepared_path.exists()
    rows = read_rows(tmp_path / "prepared" / "tiny.leaks.csv")
    assert {(row["path"][2:], row["copy_of"][2:]) for row in rows} == {
        (f"{label}/{number}.png", f"{label + 3}/{number}.png")
        for label in range(3)
        for number in range(3)
    }
    assert {row["copy_of_split"] for row in rows} == {"test"}
    assert {row["split"] for row in rows} == {"train", "validation"}


def test_a_fixed_dataset_leaves_no_list_of_leaks(leaking, tmp_path):
    config = tree_config(tmp_path)
    with pytest.raises(DatasetError, match="Found 1 copy"):
        prepare(leaking, config)
    assert leaks_file(config).exists()
    (leaking.root / TRAIN / "2.png").unlink()
    left = [record for record in leaking.records if record.path != f"{TRAIN}/2.png"]
    prepare(replace(leaking, records=left), config)
    assert not leaks_file(config).exists()


def test_an_image_in_training_and_validation_is_a_leak(tree, tmp_path):
    config = tree_config(tmp_path)
    prepare(tree, config)
    train, validation, _ = split_paths(config)
    copy_image(tree.root, validation[0], train[0])
    with pytest.raises(DatasetError, match=r"\(train\) and .* \(validation\): same bytes"):
        prepare(tree, config)


def test_an_image_in_two_folds_is_a_leak(tree, tmp_path):
    copy_image(tree.root, "c00/0.png", "c01/0.png")
    with pytest.raises(DatasetError, match=r"\(fold \d\) and .* \(fold \d\): same bytes"):
        prepare(tree, tree_config(tmp_path, folds=3))


def test_drop_takes_images_out_of_training_and_never_out_of_the_test(leaking, tmp_path):
    kept = tree_config(tmp_path / "1", on_leak="allow")
    dropping = tree_config(tmp_path / "2", on_leak="drop")
    before, after = prepare(leaking, kept), prepare(leaking, dropping)
    assert (before.num_development_images, after.num_development_images) == (9, 8)
    assert after.duplicates["dropped"] == 1
    test = (kept.prepared_path / "test", dropping.prepared_path / "test")
    for name in ("images.bin", "manifest.parquet"):
        assert (test[0] / name).read_bytes() == (test[1] / name).read_bytes()
    development = [*split_paths(dropping)[0], *split_paths(dropping)[1]]
    assert f"{TRAIN}/2.png" not in development
    assert sorted([*development, f"{TRAIN}/2.png"]) == sorted(
        [*split_paths(kept)[0], *split_paths(kept)[1]]
    )
    assert before.content_hash != after.content_hash
    # The images behind the gap are still those of their files.
    data, whole = open_development(dropping), open_development(kept)
    for own, other in ((data.train, whole.train), (data.validation, whole.validation)):
        for index, path in enumerate(own.paths):
            assert np.array_equal(own.image(index), other.image(other.paths.index(path)))


def test_allow_keeps_all_images_and_counts_them(leaking, tmp_path):
    config = tree_config(tmp_path, on_leak="allow")
    info = prepare(leaking, config)
    assert (info.num_development_images, info.num_test_images) == (9, 9)
    assert info.duplicates["equal"] == {**NONE, ACROSS_SPLITS: 1}
    assert describe_duplicates(info.duplicates) == [
        "1 image equal to one of another split, kept (data.on_leak)"
    ]
    (row,) = read_rows(config.prepared_path / "duplicates.csv")
    assert (row["relation"], row["equality"]) == (ACROSS_SPLITS, "same bytes")
    assert (row["path"], row["copy_of"]) == (f"{TRAIN}/2.png", f"{TEST}/1.png")


def test_data_that_were_allowed_to_leak_are_not_taken_for_ones_that_may_not(leaking, tmp_path):
    prepare(leaking, tree_config(tmp_path, on_leak="allow"))
    with pytest.raises(DatasetError, match="Found 1 copy"):
        prepare(leaking, tree_config(tmp_path))
    assert prepare(leaking, tree_config(tmp_path, on_leak="drop")).duplicates["dropped"] == 1


def test_a_published_split_is_unchanged_by_default(tmp_path):
    assert tree_config(tmp_path).leak_rule == "fail"
    assert Cub200Data().leak_rule == "allow"
    assert Cub200Data(on_leak="fail").leak_rule == "fail"


def test_the_same_pixels_in_another_container_are_a_leak(tree, tmp_path):
    with Image.open(tree.root / TEST / "1.png") as image:
        image.save(tree.root / TRAIN / "2.bmp")
    twin = ImageRecord(
        f"{TRAIN}/2.bmp", TRAIN, "undecided", file=tree.root / TRAIN / "2.bmp",
        continuous={"angle": 0.0, "height": 0.0},
    )  # fmt: skip
    with pytest.raises(
        DatasetError, match=r"'c01/2\.bmp' \(train\) and 'c05/1\.png' \(test\): same pixels"
    ):
        prepare(replace(tree, records=[*tree.records, twin]), tree_config(tmp_path))


def test_copies_within_and_across_classes_are_reported_and_kept(tree, tmp_path):
    copy_image(tree.root, "c04/0.png", "c04/2.png")
    copy_image(tree.root, "c04/1.png", "c05/1.png")
    config = tree_config(tmp_path)
    info = prepare(tree, config)
    assert (info.num_development_images, info.num_test_images) == (9, 9)
    assert info.duplicates["equal"] == {ACROSS_SPLITS: 0, WITHIN_CLASS: 1, ACROSS_CLASSES: 1}
    rows = read_rows(config.prepared_path / "duplicates.csv")
    assert [(row["relation"], row["path"], row["copy_of"]) for row in rows] == [
        (WITHIN_CLASS, "c04/2.png", "c04/0.png"),
        (ACROSS_CLASSES, "c05/1.png", "c04/1.png"),
    ]
    assert describe_duplicates(info.duplicates) == [
        "1 image equal to another of the same class",
        "1 image equal to one of another class in the same split",
    ]


def draw_scene(number, size=96):
    """Returns an image of soft shapes, as photographs have, that differs for each number."""
    coarse = np.random.default_rng(number).integers(0, 256, (9, 9, 3), dtype=np.uint8)
    return Image.fromarray(coarse).resize((size, size), Image.Resampling.BICUBIC)


def are_alike(one, other):
    prints = np.stack([compute_fingerprint(np.asarray(each)) for each in (one, other)])
    first, second = hash_fingerprints(prints)
    cosine = prints[0] @ prints[1] / np.linalg.norm(prints, axis=1).prod()
    return int(first ^ second).bit_count() <= MAX_HASH_DISTANCE and cosine >= MIN_SIMILARITY


def test_an_image_that_was_changed_a_little_has_almost_the_same_fingerprint(tmp_path):
    for number in range(20):
        scene = draw_scene(number)
        scene.save(tmp_path / "scene.jpg", quality=40)
        with Image.open(tmp_path / "scene.jpg") as saved:
            assert are_alike(scene, saved)
        assert are_alike(scene, scene.filter(ImageFilter.GaussianBlur(1)))
        assert are_alike(scene, scene.point(lambda value: value * 0.8 + 10))
        assert not are_alike(scene, draw_scene(number + 1000))
        assert not are_alike(scene, scene.rotate(90))


def test_near_duplicates_are_found_and_unrelated_images_are_not(tmp_path):
    tree = write_tree(tmp_path / "raw")
    for number, record in enumerate(tree.records):
        draw_scene(number).save(record.file)
    config = tree_config(tmp_path, image_size_px=64)
    assert prepare(tree, config).duplicates["alike"] == NONE
    for target, source in (("c00/2.png", "c05/1.png"), ("c04/0.png", "c04/1.png")):
        with Image.open(tree.root / source) as image:
            image.point(lambda value: value * 0.9 + 5).save(tree.root / target)
    info = prepare(tree, config)
    assert info.duplicates["equal"] == NONE
    assert info.duplicates["alike"] == {**NONE, ACROSS_SPLITS: 1, WITHIN_CLASS: 1}
    rows = read_rows(config.prepared_path / "duplicates.csv")
    assert [(row["equality"], row["path"], row["copy_of"]) for row in rows] == [
        ("looks alike", "c00/2.png", "c05/1.png"),
        ("looks alike", "c04/1.png", "c04/0.png"),
    ]
    assert all(0.99 <= float(row["similarity"]) <= 1 for row in rows)
    (line,) = describe_duplicates(info.duplicates)
    assert line == "near-duplicates, in pairs: 1 across splits, 1 within a class"


def test_blank_images_are_not_all_alike(tmp_path):
    tree = write_tree(tmp_path / "raw")
    for number, record in enumerate(tree.records):
        Image.new("RGB", (10, 10), (10 * number, 10 * number, 10 * number)).save(record.file)
    assert prepare(tree, tree_config(tmp_path)).duplicates["alike"] == NONE


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("Robin", "robin"),
        ("red robin", "red_robin"),
        ("red robin", " red  robin "),
        ("red-robin", "red robin"),
        ("Caf\u00e9", "Cafe\u0301"),
        ("\uff21", "a"),
        ("Stra\u00dfe", "STRASSE"),
    ],
)
def test_names_that_are_equal_up_to_case_spaces_and_unicode_are_reported(one, other):
    places = {one: Place(2, "train"), other: Place(0, "test"), "wren": Place(0, "test")}
    assert find_similar_names(places) == [{one: "train", other: "test"}]
    assert find_similar_names({"robin": Place(2, "train"), "robins": Place(0, "test")}) == []


def test_similar_names_are_in_the_description_of_the_dataset(tree, tmp_path):
    renamed = [
        replace(each, class_name="C05") if each.class_name == TRAIN else each
        for each in tree.records
    ]
    info = prepare(replace(tree, records=renamed), tree_config(tmp_path))
    assert info.duplicates["similar_class_names"] == [{"C05": "validation", "c05": "test"}]
    (line,) = describe_duplicates(info.duplicates)
    assert (
        line == "class names that are probably the same class: 'C05' (validation) and 'c05' (test)"
    )


def test_one_worker_finds_the_same_as_two(tmp_path):
    tree = write_tree(tmp_path / "raw", num_classes=50)
    copy_image(tree.root, "c49/1.png", "c00/0.png")
    copy_image(tree.root, "c30/1.png", "c30/2.png")
    found = []
    for workers in (1, 2):
        config = tree_config(tmp_path / str(workers), on_leak="drop")
        info = prepare(tree, config, workers=workers)
        assert info.duplicates["dropped"] == 1
        found.append((info, (config.prepared_path / "duplicates.csv").read_bytes()))
    assert found[0] == found[1]
