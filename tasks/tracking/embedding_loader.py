"""Loads a packed embedding model; needs numpy, Pillow, and torch or onnxruntime, nothing else.

The packed copy is in a package with a copy of image_decoding.py, so that images are prepared by
the same code as the model's training data.
"""

# B = batch, C = channels, D = embedding dim, H = height, S = input size, W = width

import base64
import binascii
import json
import os
import stat
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageFile

if __package__ == "tasks.tracking":
    from dml_core.data import image_decoding
else:
    from . import image_decoding  # type: ignore[attr-defined,no-redef]

PROGRAM_FILE = "program.pt2"
ONNX_FILE = "program.onnx"
FACTS_FILE = "facts.json"
IMAGE_COLUMN = "image"
"""The column of a table that holds the images, where it has more than one."""
MAX_FILE_BYTES = 512 * 2**20
"""Larger files are refused, as in the preparation."""
SERVING_VARIABLE = "_MLFLOW_IS_IN_SERVING_ENVIRONMENT"
"""Set by MLflow in a server: a remote request must not name files of this machine."""

_CHANNELS = (1, 3, 4)
_TAKEN = (
    "a path, the bytes of an image file, their base64 text, a Pillow image, or a uint8 array "
    "(H, W), (H, W, C) or (C, H, W) with 1, 3 or 4 channels"
)


class EmbeddingModel:
    """Computes (B, D) float32 embeddings of images, prepared as in the evaluation."""

    def __init__(self, folder: Path) -> None:
        facts = json.loads((folder / FACTS_FILE).read_text(encoding="utf-8"))
        self.choices = image_decoding.PackingChoices(**facts["preparation"])
        self.size_px: int = facts["input_size_px"]
        self.takes_whole: bool = facts["evaluation_crop"] == "whole"
        self.batch_size: int = facts["batch_size"]
        self.metric: str = facts["metric"]
        """cosine or euclidean: how the embeddings are compared."""
        self._program, self._resize = _open_program(folder)

    def predict(self, images: Any, params: dict[str, Any] | None = None) -> np.ndarray:
        """Returns the (B, D) embeddings of images.

        Args:
            images: one image, a list of images, a batch (B, H, W, C) or (B, C, H, W) of uint8, or
                a table with a column of images. An image is a path, the bytes of an image file,
                their base64 text, a Pillow image, or a uint8 array (H, W), (H, W, C) or (C, H, W)
                with values from 0 to 255. Sizes may differ. Each is turned upright, converted and
                resized as the dataset was; one that has the dataset's size stays as it is.
            params: unused; MLflow passes it.

        Raises:
            ValueError: where an image cannot be used, with its position.
        """
        listed = self._list(images)
        if len(listed) == 0:
            raise ValueError(f"images must hold one image or more, each {_TAKEN}. Got none.")
        parts = []
        for start in range(0, len(listed), self.batch_size):
            places = range(start, min(start + self.batch_size, len(listed)))
            parts.append(self.embed(np.stack([self._prepare_at(listed[at], at) for at in places])))
        return np.concatenate(parts)

    def prepare(self, image: Any) -> np.ndarray:
        """Returns one image as (S, S, C) uint8: the network's input.

        Raises:
            BadImage: where it cannot be used; a ValueError with the reason.
        """
        return self._fit(self._pack(image))

    def embed(self, pixels: np.ndarray) -> np.ndarray:
        """Returns the (B, D) embeddings of (B, S, S, C) prepared images."""
        return self._program(pixels)

    def _prepare_at(self, image: Any, at: int) -> np.ndarray:
        try:
            return self.prepare(image)
        except image_decoding.BadImage as error:
            raise ValueError(f"image {at}{_name(image)} {error.reason}.") from error

    def _list(self, images: Any) -> Sequence[Any] | np.ndarray:
        """Returns the images one by one."""
        if hasattr(images, "columns") or isinstance(images, Mapping):
            images = _take_column(images)
        if hasattr(images, "detach"):
            # A tensor; this file works without torch.
            images = images.numpy(force=True)
        if isinstance(images, str | bytes | bytearray | memoryview | os.PathLike | Image.Image):
            return [images]
        if not isinstance(images, np.ndarray):
            return images if isinstance(images, list | tuple) else list(images)
        if images.ndim == 0 or (images.dtype.kind not in "OSU" and images.ndim in (2, 3)):
            return [images[()]]
        if images.ndim == 4 and images.dtype.kind != "O":
            return self._split_batch(images)
        return list(images.ravel() if images.dtype.kind in "OSU" else images)

    def _split_batch(self, images: np.ndarray) -> np.ndarray:
        """Returns a batch as (B, H, W, C), whether its channels come first or last."""
        for channels in (self.choices.channels, *_CHANNELS):
            if images.shape[3] == channels:
                return images
            if images.shape[1] == channels:
                return images.transpose(0, 2, 3, 1)
        raise ValueError(
            "a batch of images must have 1, 3 or 4 channels in the last or the second place. "
            f"Got the shape {images.shape}."
        )

    def _pack(self, image: Any) -> np.ndarray:
        """Returns an image as the dataset stores its images: (H, W, C) uint8."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            content = _find_content(image)
            if content is not None:
                return image_decoding.pack_content(content, self.choices)
            opened = image if isinstance(image, Image.Image) else _open_array(image)
            return image_decoding.pack_opened(opened, self.choices)

    def _fit(self, image: np.ndarray) -> np.ndarray:
        """Returns a packed image as (S, S, C), cropped as in the evaluation."""
        height, width = image.shape[:2]
        if not self.takes_whole:
            side = min(self.size_px, height, width)
            top, left = (height - side) // 2, (width - side) // 2
            image = image[top : top + side, left : left + side]
        is_fitting = image.shape[:2] == (self.size_px, self.size_px)
        return image if is_fitting else self._resize(image, self.size_px)


Program = Callable[[np.ndarray], np.ndarray]
"""(B, S, S, C) uint8 pixels to (B, D) float32 embeddings."""
Resize = Callable[[np.ndarray, int], np.ndarray]
"""(H, W, C) uint8 pixels to (S, S, C)."""


def _open_program(folder: Path) -> tuple[Program, Resize]:
    """Returns the network of a folder, and the way to resize an image for it."""
    if (folder / ONNX_FILE).is_file():
        return _open_onnx(folder / ONNX_FILE), _resize_with_pillow
    return _open_torch(folder / PROGRAM_FILE), _resize_with_torch


def _open_torch(path: Path) -> Program:
    import torch

    program = torch.export.load(path).module()

    def run(pixels: np.ndarray) -> np.ndarray:
        # The memory layout of the evaluation's batches: other strides round differently.
        batch = torch.from_numpy(np.ascontiguousarray(pixels)).permute(0, 3, 1, 2).contiguous()
        with torch.no_grad():
            embeddings: np.ndarray = program(batch).float().numpy()
        return embeddings

    return run


def _open_onnx(path: Path) -> Program:
    import onnxruntime

    session = onnxruntime.InferenceSession(
        str(path), providers=onnxruntime.get_available_providers()
    )
    (taken,) = session.get_inputs()

    def run(pixels: np.ndarray) -> np.ndarray:
        batch = np.ascontiguousarray(pixels.transpose(0, 3, 1, 2))
        embeddings: np.ndarray = session.run(None, {taken.name: batch})[0]
        return embeddings

    return run


def _resize_with_torch(image: np.ndarray, size_px: int) -> np.ndarray:
    """Resizes as the evaluation does."""
    import torch

    # Copied with the channels innermost, as in the evaluation, for equal rounding.
    pixels = torch.from_numpy(image.copy()[None]).permute(0, 3, 1, 2)
    is_native = torch.backends.cpu.get_cpu_capability() in ("AVX2", "AVX512")
    resized = torch.nn.functional.interpolate(
        # On other CPUs torch resizes floats only, and so does the evaluation there.
        pixels if is_native else pixels.float(),
        [size_px, size_px],
        mode="bilinear",
        antialias=True,
    )
    whole = resized if is_native else resized.round().byte()
    return whole[0].permute(1, 2, 0).numpy()


def _resize_with_pillow(image: np.ndarray, size_px: int) -> np.ndarray:
    """Resizes without torch, by the same filter; values may differ by rounding."""
    opened = Image.fromarray(image[:, :, 0] if image.shape[2] == 1 else image)
    resized = np.asarray(opened.resize((size_px, size_px), Image.Resampling.BILINEAR))
    return resized.reshape(size_px, size_px, image.shape[2])


def _take_column(table: Any) -> Any:
    """Returns the images of a table, or of a mapping from a column's name to values."""
    names = list(table.columns if hasattr(table, "columns") else table)
    if len(names) != 1 and IMAGE_COLUMN not in names:
        raise ValueError(
            f"a table of images must have one column, or one named {IMAGE_COLUMN!r}. Got {names}."
        )
    column = table[IMAGE_COLUMN if IMAGE_COLUMN in names else names[0]]
    return column.tolist() if hasattr(table, "columns") else column


def _find_content(image: Any) -> bytes | None:
    """Returns the bytes of an image file; None for an image that is already decoded."""
    if isinstance(image, bytes | bytearray | memoryview):
        return bytes(image)
    if isinstance(image, os.PathLike):
        return _read_file(os.fspath(image))
    if isinstance(image, str):
        return _read_text(image)
    if isinstance(image, ImageFile.ImageFile) and image.tile and image.fp is not None:
        # Not decoded yet: the preparation decodes large JPEGs at a fraction of their size.
        place = image.fp.tell()
        image.fp.seek(0)
        content = image.fp.read()
        image.fp.seek(place)
        return content
    return None


def _read_text(text: str) -> bytes:
    """Returns the bytes of the file that a text names, or that it holds in base64."""
    if text.startswith("data:"):
        text = text.partition(",")[2]
    elif os.environ.get(SERVING_VARIABLE, "").lower() != "true" and _is_there(text):
        return _read_file(text)
    try:
        content = base64.b64decode("".join(text.split()), validate=True)
    except (binascii.Error, ValueError):
        content = b""
    if not content:
        raise image_decoding.BadImage("is neither a file that exists nor base64 text")
    return content


def _is_there(text: str) -> bool:
    try:
        return os.path.exists(text)
    except ValueError:
        return False


def _read_file(path: str | bytes) -> bytes:
    try:
        # Without blocking: opening a pipe would wait for a writer.
        with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as stream:
            facts = os.fstat(stream.fileno())
            if not stat.S_ISREG(facts.st_mode) or not 0 < facts.st_size <= MAX_FILE_BYTES:
                raise image_decoding.BadImage(
                    f"must be a regular file of 1 to {MAX_FILE_BYTES} bytes"
                )
            return stream.read()
    except OSError as error:
        raise image_decoding.BadImage(f"cannot be read: {error.strerror or error}") from error


def _open_array(image: Any) -> Image.Image:
    """Returns an array, or its nested lists from JSON, as a Pillow image."""
    array = np.asarray(image)
    if array.ndim == 3 and array.shape[2] not in _CHANNELS and array.shape[0] in _CHANNELS:
        array = array.transpose(1, 2, 0)
    is_image = array.ndim == 2 or (array.ndim == 3 and array.shape[2] in _CHANNELS)
    # JSON has no bytes: integers from 0 to 255 are equivalent.
    if array.dtype.kind in "iu" and array.size and array.min() >= 0 and array.max() <= 255:
        array = array.astype(np.uint8)
    if not is_image or array.dtype != np.uint8:
        found = f"{array.dtype} with the shape {array.shape}"
        raise image_decoding.BadImage(f"must be {_TAKEN}. Got {found}")
    plain = array[:, :, 0] if array.ndim == 3 and array.shape[2] == 1 else array
    return Image.fromarray(np.ascontiguousarray(plain))


def _name(image: Any) -> str:
    """Returns an image's name for messages, after its position."""
    if isinstance(image, os.PathLike):
        return f" ({os.fspath(image)!r})"
    # Base64 text may have megabytes.
    return f" ({image[:80]!r})" if isinstance(image, str) else ""


def _load_pyfunc(data_path: str) -> EmbeddingModel:
    """Returns the model in a folder; MLflow calls this function by its name."""
    return EmbeddingModel(Path(data_path))
