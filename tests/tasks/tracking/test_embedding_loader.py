"""The packed model takes images in every form and prepares them as the evaluation's were."""

import base64
import io

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image

from dml_core.config import resolve_trial_config
from dml_core.data.prepare import prepare_dataset
from dml_core.data.prepared import open_development, open_test
from dml_core.data.sources.registry import list_images
from dml_core.evaluation.evaluate import evaluate_embeddings, measure_spread
from dml_core.measures.model_scores import embed_with_checkpoint, evaluate_checkpoint
from dml_core.models.building import build_model
from dml_core.training.checkpoint import Checkpoint, load_checkpoint
from dml_core.training.determinism import seeded_torch
from tasks.tracking.embedding_loader import (
    SERVING_VARIABLE,
    EmbeddingModel,
    _resize_with_pillow,
    _resize_with_torch,
)
from tasks.tracking.packing import pack_model
from tests.references.tiny_trials import TINY

SIZES = [(24, 24), (31, 50), (90, 33), (200, 300), (16, 12)]
# A format that has the mode.
SUFFIXES = {
    "L": "png",
    "RGB": "jpg",
    "RGBA": "png",
    "P": "gif",
    "CMYK": "tif",
    "LA": "png",
    "I;16": "png",
    "1": "png",
}
ORIENTATION = 0x0112


def draw(mode, size, number):
    """Returns an image with a lit corner, so that a turn or a flip shows."""
    height, width = size
    values = np.random.default_rng(number).integers(0, 256, (height, width, 4), dtype=np.uint8)
    values[: height // 2, : width // 3, :3] //= 4
    if mode == "I;16":
        return Image.fromarray(values[:, :, 0].astype(np.uint16) * 257)
    drawn = Image.fromarray(values)
    return drawn.convert(mode) if mode in ("RGBA", "LA") else drawn.convert("RGB").convert(mode)


def write_images(root):
    """Writes images of every mode and size, and of every orientation that a camera notes."""
    number = 0
    for mode, suffix in SUFFIXES.items():
        for size in SIZES:
            number += 1
            path = root / f"class{number % 8}" / f"{number}.{suffix}"
            path.parent.mkdir(parents=True, exist_ok=True)
            draw(mode, size, number).save(path)
    for orientation in range(1, 9):
        exif = Image.Exif()
        exif[ORIENTATION] = orientation
        path = root / f"class{orientation - 1}" / f"turned{orientation}.jpg"
        draw("RGB", (40, 64), 100).save(path, exif=exif)


def make_checkpoint(root, **knobs):
    """Prepares the images and returns a network that was made, but not trained, for them."""
    changes = {key.replace("__", "."): value for key, value in knobs.items()}
    values = {key: value for key, value in TINY.items() if not key.startswith("data.")}
    data = {
        "data.name": "folder",
        "data.raw": str(root / "raw"),
        "data.alias": "mixed",
        "data.prepared_root": str(root / "prepared"),
        "data.image_size_px": 24,
        # The turned ones are the same picture.
        "data.on_leak": "allow",
        "data.max_refused_fraction": 0.0,
        "evaluation.batch_size": 7,
    }
    config = resolve_trial_config(values, data, changes)
    prepare_dataset(list_images(config.data), config.data, workers=1)
    channels = 1 if config.data.color == "gray" else 3
    with seeded_torch(0, "model"):
        model = build_model(config, in_channels=channels)
    pixels = torch.randint(0, 256, (32, channels, 24, 24), dtype=torch.uint8)
    with torch.no_grad():
        model(pixels)
    return Checkpoint(config, 1, model.state_dict(), {}, {}, in_channels=channels)


def load_packed(checkpoint, folder):
    pack_model(checkpoint, folder)
    return EmbeddingModel(folder)


@pytest.fixture(scope="module")
def raw_images(tmp_path_factory):
    root = tmp_path_factory.mktemp("mixed")
    write_images(root / "raw")
    return root


@pytest.fixture(scope="module")
def plain_model(tmp_path_factory, trained_winners):
    """The model of a trained winner, and its checkpoint."""
    checkpoint = load_checkpoint(trained_winners[1] / "dim_8-seed0" / "checkpoint.pt")
    return load_packed(checkpoint, tmp_path_factory.mktemp("packed")), checkpoint


@pytest.mark.parametrize(
    "knobs",
    [
        {"data__resize": "shorter", "data__color": "rgb"},
        {"data__resize": "square", "data__color": "gray"},
        {
            "data__resize": "shorter",
            "data__color": "gray",
            "augmentation__evaluation_crop": "whole",
            "augmentation__input_size_px": 20,
        },
        {
            "data__resize": "square",
            "data__color": "rgb",
            "augmentation__evaluation_crop": "whole",
            "augmentation__input_size_px": 32,
        },
        {"data__resize": "shorter", "data__color": "rgb", "augmentation__input_size_px": 20},
    ],
    ids=["shorter-rgb", "square-gray", "shorter-gray-whole", "square-rgb-whole", "smaller-box"],
)
def test_a_file_has_the_embedding_of_the_evaluation(raw_images, tmp_path, knobs):
    checkpoint = make_checkpoint(raw_images, **knobs)
    model = load_packed(checkpoint, tmp_path)
    data = checkpoint.config.data
    development = open_development(data)
    sets = [development.train, development.validation, open_test(data)[0]]
    assert sum(len(images) for images in sets) == len(SUFFIXES) * len(SIZES) + 8
    for images in sets:
        files = [raw_images / "raw" / path for path in images.paths]
        for at, file in enumerate(files):
            np.testing.assert_array_equal(model._pack(file), images.image(at), str(file))
        wanted = embed_with_checkpoint(checkpoint, images)
        assert measure_spread(wanted) > 0.01
        np.testing.assert_allclose(model.predict(files), wanted, atol=1e-5)


def test_every_form_of_an_image_gives_the_same_embedding(plain_model, tmp_path):
    model, checkpoint = plain_model
    images = open_development(checkpoint.config.data).validation
    wanted = embed_with_checkpoint(checkpoint, images)[:2]
    arrays = images.gather(np.arange(2))
    files = [tmp_path / f"{number}.png" for number in range(2)]
    for array, file in zip(arrays, files, strict=True):
        Image.fromarray(array[:, :, 0]).save(file)
    contents = [file.read_bytes() for file in files]
    texts = [base64.b64encode(content).decode() for content in contents]
    opened = [Image.open(file) for file in files]
    forms = {
        "paths": files,
        "texts of paths": [str(file) for file in files],
        "bytes": contents,
        "views of bytes": [memoryview(content) for content in contents],
        "base64": texts,
        "base64 in lines": ["\n".join((text[:60], text[60:])) for text in texts],
        "addresses of data": [f"data:image/png;base64,{text}" for text in texts],
        "Pillow images that are not decoded": opened,
        "Pillow images": [Image.fromarray(array[:, :, 0]) for array in arrays],
        "arrays (H, W)": [array[:, :, 0] for array in arrays],
        "arrays (H, W, 1)": list(arrays),
        "arrays (H, W, 3)": [np.repeat(array, 3, axis=2) for array in arrays],
        "arrays (1, H, W)": [array.transpose(2, 0, 1) for array in arrays],
        "batch (B, H, W, C)": arrays,
        "batch (B, C, H, W)": arrays.transpose(0, 3, 1, 2),
        "tensor": torch.from_numpy(arrays),
        "nested lists": arrays.tolist(),
        "array of texts": np.array(texts),
        "table of one column": pd.DataFrame({"anything": texts}),
        "table with other columns": pd.DataFrame({"number": [1, 2], "image": contents}),
        "mapping": {"image": texts},
        "forms side by side": [files[0], texts[1]],
    }
    for name, form in forms.items():
        np.testing.assert_allclose(model.predict(form), wanted, atol=1e-6, err_msg=name)
    for one in (files[0], str(files[0]), contents[0], texts[0], arrays[0], arrays[0][:, :, 0]):
        np.testing.assert_allclose(model.predict(one), wanted[:1], atol=1e-6)
    with pytest.raises(ValueError, match=r"image 1 \('no such file.png'\) is neither a file"):
        model.predict([files[0], "no such file.png"])
    with pytest.raises(ValueError, match="one image or more"):
        model.predict([])


def test_the_recall_of_the_loaded_model_on_raw_files_is_that_of_the_evaluation(
    plain_model, tmp_path
):
    model, checkpoint = plain_model
    config = checkpoint.config
    images, _ = open_test(config.data)
    wanted = evaluate_checkpoint(checkpoint, images, evaluation=config.evaluation)
    records = {record.path: record for record in list_images(config.data).records}
    files = []
    for number, path in enumerate(images.paths):
        files.append(tmp_path / f"{number}.png")
        Image.fromarray(records[path].pixels).save(files[-1])
    scores = evaluate_embeddings(
        model.predict(files),
        images.labels,
        config=config.evaluation,
        metric=config.retrieval_metric,
        roles=images.roles,
        seed=config.seed,
    )
    assert 0 < wanted["recall_at_1"] < 1
    assert scores["recall_at_1"] == wanted["recall_at_1"]
    assert scores["map_at_r"] == pytest.approx(wanted["map_at_r"], abs=1e-5)


def test_image_bombs_are_refused_in_every_form(plain_model, tmp_path):
    model, _ = plain_model
    file = tmp_path / "bomb.png"
    # Above our limit, and below the one from which Pillow itself warns.
    bomb = Image.new("1", (9_000, 9_000))
    bomb.save(file)
    content = file.read_bytes()
    forms = [
        file,
        str(file),
        content,
        base64.b64encode(content).decode(),
        Image.open(io.BytesIO(content)),
        bomb,
        np.broadcast_to(np.uint8(0), (9_000, 9_000)),
    ]
    for form in forms:
        with pytest.raises(ValueError, match=r"image 0.* is a decompression bomb: 9000 x 9000 px"):
            model.predict([form])
    larger = io.BytesIO()
    Image.new("1", (14_000, 14_000)).save(larger, "PNG")
    with pytest.raises(ValueError, match="image 1 is a decompression bomb"):
        model.predict([np.zeros((28, 28), dtype=np.uint8), larger.getvalue()])
    with pytest.raises(ValueError, match="too long and thin"):
        model.predict([np.zeros((2, 4000), dtype=np.uint8)])


@pytest.mark.parametrize("channels", [1, 3])
def test_without_torch_an_image_is_resized_the_same_up_to_rounding(channels):
    for number, size in enumerate([(24, 24), (31, 50), (90, 33), (200, 300)]):
        image = np.asarray(draw("RGB", size, number))[:, :, :channels]
        wanted = _resize_with_torch(image, 32).astype(int)
        found = _resize_with_pillow(image, 32).astype(int)
        assert found.shape == (32, 32, channels)
        assert np.abs(found - wanted).max() <= 1


def test_a_server_reads_no_files_that_a_request_names(plain_model, tmp_path, monkeypatch):
    model, _ = plain_model
    file = tmp_path / "image.png"
    Image.fromarray(np.zeros((28, 28), dtype=np.uint8)).save(file)
    text = base64.b64encode(file.read_bytes()).decode()
    expected = model.predict([str(file)])
    monkeypatch.setenv(SERVING_VARIABLE, "true")
    for named in (str(file), f"file://{file}", f"data:{file}"):
        with pytest.raises(ValueError, match="is neither a file that exists nor base64 text"):
            model.predict([named])
    np.testing.assert_array_equal(model.predict([text]), expected)
