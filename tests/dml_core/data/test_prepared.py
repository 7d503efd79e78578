"""Tests of opening prepared datasets."""

import json
import pickle
import shutil

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from dml_core.data.prepare import prepare_dataset
from dml_core.data.prepared import map_images, open_development, open_test
from dml_core.data.prepared_info import describe_files, verify_files
from dml_core.data.records import DatasetError
from tests.references.drawn_datasets import drawn_listing, tree_config, write_tree


@pytest.fixture
def prepared(tmp_path):
    """A configuration whose dataset of 8 classes x 3 images (12 x 10 px) is prepared."""
    config = tree_config(tmp_path, image_size_px=10)
    prepare_dataset(write_tree(tmp_path / "raw", num_classes=8), config, workers=1)
    return config


def with_values(config, **values):
    return type(config).model_validate({**config.model_dump(), **values})


def test_train_and_validation_share_no_class(prepared):
    data = open_development(prepared)
    assert (data.train.num_classes, data.validation.num_classes) == (3, 1)
    together = sorted(data.train.class_names + data.validation.class_names)
    assert together == ["c00", "c01", "c02", "c03"]
    assert (len(data.train), len(data.validation)) == (9, 3)


def test_labels_name_the_classes_of_the_paths(prepared):
    data = open_development(prepared)
    for images in (data.train, data.validation, open_test(prepared)[0]):
        assert images.labels.dtype == np.int64
        assert sorted(set(images.labels)) == list(range(images.num_classes))
        named = [images.class_names[label] for label in images.labels]
        assert named == [path.split("/")[0] for path in images.paths]


def test_images_are_those_of_the_files(prepared, tmp_path):
    images, info = open_test(prepared)
    assert info.channels == images.channels == 3
    for index, path in enumerate(images.paths):
        with Image.open(tmp_path / "raw" / path) as original:
            assert np.array_equal(images.image(index), np.asarray(original))
    assert images.sizes.tolist() == [[12, 10]] * 12


def test_every_fold_has_other_validation_classes(tmp_path):
    config = tree_config(tmp_path, folds=4)
    prepare_dataset(drawn_listing(num_classes=16), config)
    seen = []
    for fold in range(4):
        data = open_development(with_values(config, fold=fold))
        assert not set(data.train.class_names) & set(data.validation.class_names)
        assert data.train.num_classes + data.validation.num_classes == 8
        seen.extend(data.validation.class_names)
    assert sorted(seen) == [f"c{label:02d}" for label in range(8)]
    with pytest.raises(DatasetError, match=r"data\.fold must be below data\.folds=4\. Got 4"):
        open_development(with_values(config, fold=4))


def test_training_opens_nothing_of_the_test_folder(prepared):
    shutil.rmtree(prepared.prepared_path / "test")
    assert len(open_development(prepared).train) == 9
    with pytest.raises(DatasetError, match=r"test/images\.bin is missing"):
        open_test(prepared)


def test_continuous_labels_are_the_configured_columns(prepared):
    assert open_development(prepared).train.continuous.shape == (9, 0)
    config = with_values(prepared, continuous_labels=("height", "angle"))
    images, _ = open_test(config)
    # The class number and ten degrees an image, in the order of the configuration.
    assert images.continuous.dtype == np.float64
    assert images.continuous[:4].tolist() == [[4, 0], [4, 10], [4, 20], [5, 0]]


def test_an_unknown_continuous_label_is_refused_with_those_there_are(prepared):
    config = with_values(prepared, continuous_labels=("angel",))
    with pytest.raises(DatasetError, match=r"Got 'angel'. Available: angle, height. Did you mean"):
        open_development(config)


def test_a_missing_folder_says_what_to_run(tmp_path):
    with pytest.raises(DatasetError, match=r"'tiny' is not prepared at .*Run: dml prepare"):
        open_development(tree_config(tmp_path))


def test_other_values_than_prepared_with_are_refused_with_both(prepared):
    config = with_values(prepared, image_size_px=12, split_seed=3)
    with pytest.raises(DatasetError, match=r"data\.image_size_px was 10, and is 12 now") as caught:
        open_development(config)
    assert "data.split_seed was 0, and is 3 now" in str(caught.value)
    with pytest.raises(DatasetError, match="image_size_px was 10"):
        open_test(config)


@pytest.mark.parametrize(
    "values",
    [
        {"on_bad_image": "fail"},
        {"max_refused_fraction": 0.5},
        {"raw": "elsewhere"},
        {"quantize_bins": 3},
        {"standardize_labels": False},
    ],
)
def test_values_without_effect_on_the_data_may_change(prepared, values):
    assert len(open_development(with_values(prepared, **values)).train) == 9


@pytest.mark.parametrize("name", ["development/images.bin", "development/manifest.parquet"])
def test_truncated_files_are_refused_by_name(prepared, name):
    file = prepared.prepared_path / name
    size = file.stat().st_size
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(DatasetError, match=f"{name} has {size - 1} bytes instead of {size}"):
        open_development(prepared)


def test_a_manifest_that_is_no_parquet_is_refused(prepared):
    file = prepared.prepared_path / "test" / "manifest.parquet"
    file.write_bytes(bytes(file.stat().st_size))
    with pytest.raises(DatasetError, match=r"test/manifest\.parquet is damaged"):
        open_test(prepared)


def test_verification_names_the_damaged_file(prepared):
    verify_files(prepared.prepared_path)
    file = prepared.prepared_path / "test" / "images.bin"
    content = bytearray(file.read_bytes())
    content[100] ^= 1
    file.write_bytes(content)
    with pytest.raises(DatasetError, match=r"test/images\.bin is damaged"):
        verify_files(prepared.prepared_path)


def test_a_changed_split_is_refused(prepared):
    file = prepared.prepared_path / "splits.json"
    file.write_text(file.read_text().replace("c07", "c99"))
    with pytest.raises(DatasetError, match="was changed after it was written"):
        open_development(prepared)


def rewrite_manifest(config, part, change):
    """Changes the manifest's table, and says so in dataset.json: only its content is wrong."""
    folder = config.prepared_path
    name = f"{part}/manifest.parquet"
    pq.write_table(change(pq.read_table(folder / name)), folder / name)
    facts = json.loads((folder / "dataset.json").read_text())
    facts["files"] |= describe_files(folder, {name: ""})
    (folder / "dataset.json").write_text(json.dumps(facts))


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_label_that_became_no_number_is_refused_with_file_column_and_row(prepared, value):
    def spoil(table):
        place = table.column_names.index("continuous.angle")
        angles = table["continuous.angle"].to_pylist()
        angles[4] = angles[7] = value
        return table.set_column(place, "continuous.angle", pa.array(angles))

    rewrite_manifest(prepared, "test", spoil)
    config = with_values(prepared, continuous_labels=("height", "angle"))
    with pytest.raises(
        DatasetError,
        match=r"test/manifest\.parquet, column 'continuous\.angle': row 5 must be a finite "
        rf"number\. Got {value}, and 1 more like it\. Run: dml prepare",
    ):
        open_test(config)
    # A label that is not requested is not read.
    assert len(open_test(with_values(prepared, continuous_labels=("height",)))[0]) == 12


def test_a_class_of_the_test_among_the_development_images_is_refused_by_its_name(prepared):
    def rename(table):
        place = table.column_names.index("class_name")
        names = ["c07" if name == "c01" else name for name in table["class_name"].to_pylist()]
        return table.set_column(place, "class_name", pa.array(names))

    rewrite_manifest(prepared, "development", rename)
    with pytest.raises(
        DatasetError,
        match=r"development/manifest\.parquet must have the classes that splits\.json assigns "
        r"to it\. Only one of both files has 2 classes \(c01, c07\)",
    ):
        open_development(prepared)
    assert len(open_test(prepared)[0]) == 12


def test_selections_renumber_labels_and_share_the_memory_map(prepared):
    images, _ = open_test(prepared)
    chosen = images.select(np.array([10, 3, 11]))
    assert chosen.class_names == ("c05", "c07")
    assert chosen.labels.tolist() == [1, 0, 1]
    assert chosen.paths == ["c07/1.png", "c05/0.png", "c07/2.png"]
    assert np.shares_memory(chosen.image(1), images.image(3))
    assert np.array_equal(chosen.image(1), images.image(3))


def test_an_empty_selection_is_an_empty_set(prepared):
    nothing = open_test(prepared)[0].select([])
    assert (len(nothing), nothing.num_classes, nothing.shape) == (0, 0, None)


def test_a_mask_is_not_taken_for_indices(prepared):
    images, _ = open_test(prepared)
    with pytest.raises(AssertionError, match="indices are bool"):
        images.select(np.ones(len(images), dtype=bool))


def test_a_set_travels_to_another_process_without_its_pixels(tmp_path):
    config = tree_config(tmp_path, image_size_px=64, color="gray")
    prepare_dataset(drawn_listing(num_classes=8), config)
    train = open_development(config).train
    content = pickle.dumps(train)
    assert len(content) < train.sizes.prod(axis=1).sum() / 4
    copy = pickle.loads(content)  # noqa: S301 - our own bytes
    assert np.array_equal(copy.image(2), train.image(2))
    assert copy.paths == train.paths


def write_images(folder, shapes):
    """Writes images of the given (H, W) with one channel, and maps them."""
    images = [
        np.random.default_rng(n).integers(0, 256, (*shape, 1), dtype=np.uint8)
        for n, shape in enumerate(shapes)
    ]
    file = folder / "images.bin"
    file.write_bytes(b"".join(image.tobytes() for image in images))
    lengths = [image.size for image in images]
    offsets = np.cumsum([0, *lengths[:-1]]).astype(np.int64)
    sizes = np.array(shapes, dtype=np.int64).reshape(-1, 2)
    return images, map_images(file, offsets[: len(images)], sizes, 1)


def test_images_of_any_size_are_read(tmp_path):
    images, packed = write_images(tmp_path, [(3, 4), (5, 2), (3, 4)])
    assert len(packed) == 3
    assert packed.shape is None
    for index, image in enumerate(images):
        assert np.array_equal(packed.image(index), image)


def test_images_cannot_be_written_to(tmp_path):
    _, packed = write_images(tmp_path, [(3, 4), (3, 4)])
    with pytest.raises(ValueError, match="read-only"):
        packed.image(0)[0, 0] = 1


@pytest.mark.parametrize("chosen", [[0, 1, 2, 3, 4], [0, 1, 3], [2, 1, 0], [1, 1]])
def test_a_selection_is_gathered_as_a_copy(tmp_path, chosen):
    images, packed = write_images(tmp_path, [(3, 4)] * 5)
    selection = packed.select(np.array(chosen))
    assert selection.shape == (3, 4, 1)
    wanted = np.array([len(chosen) - 1, 0])
    gathered = selection.gather(wanted)
    assert np.array_equal(gathered, np.stack([images[chosen[index]] for index in wanted]))
    gathered[:] = 0


def test_equal_images_between_others_are_gathered(tmp_path):
    images, packed = write_images(tmp_path, [(3, 4), (5, 5), (3, 4), (2, 2)])
    selection = packed.select(np.array([2, 0]))
    assert np.array_equal(selection.gather(np.array([0, 1])), np.stack([images[2], images[0]]))


def test_gathering_images_of_several_sizes_is_a_mistake(tmp_path):
    _, packed = write_images(tmp_path, [(3, 4), (5, 5)])
    with pytest.raises(AssertionError, match="images of one size"):
        packed.gather(np.array([0, 1]))


def test_an_empty_file_has_no_images(tmp_path):
    _, packed = write_images(tmp_path, [])
    assert len(packed) == 0
    assert packed.shape is None
