"""Looks at the image files of a dataset: which can be read, their sizes, colours and copies."""

import io
import os
import stat
import statistics
import time
import warnings
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from PIL import Image

from dml_core.data.duplicates import Copy, FoundImage, Place, find_copies
from dml_core.data.image_decoding import FORMATS, BadImage, check_size, decode_image
from dml_core.data.packing import UNREADABLE, digest_record, read_image_bytes
from dml_core.data.records import ImageRecord

MAX_CHECKED = 50_000
"""Above this number of images only a sample is opened, and copies are left to `dml prepare`."""
SAMPLE = 200
"""Images whose size and colours are looked at."""
MIN_SPREAD = 8.0
"""Mean difference between the channels of an image in colour, in gray levels of 255."""
MIN_COLOR_FRACTION = 0.1
"""Share of images in colour from which a dataset is in colour."""
_ENOUGH_PX = 64
_PROGRESS_SECONDS = 2.0
# Offset 4 of a file in the ISO container: the brands of HEIC and HEIF.
_HEIC_BRANDS = (b"ftypheic", b"ftypheix", b"ftyphevc", b"ftypheim", b"ftypheis", b"ftypmif1")


class Progress:
    """Reports how much is done, at most every two seconds."""

    def __init__(self, report: Callable[[str], None], text: str, total: int | None = None) -> None:
        self._report = report
        self._text = text
        self._of = "" if total is None else f" of {total:,}"
        self._next = time.monotonic() + _PROGRESS_SECONDS
        self.done = 0

    def step(self) -> None:
        """Counts one image or file."""
        self.done += 1
        if time.monotonic() >= self._next:
            self._next = time.monotonic() + _PROGRESS_SECONDS
            self._report(f"{self._text}: {self.done:,}{self._of}")


@dataclass(frozen=True)
class Pictures:
    """The images of a dataset, as far as they were opened."""

    readable: list[ImageRecord]
    """The records without those known to be unreadable."""
    refused: dict[str, str]
    """The reason for each path that cannot be read."""
    shorter_px: tuple[int, int, int]
    """Smallest, median and largest shorter side of the sample."""
    num_sampled: int
    is_color: bool
    are_all_opened: bool


def look_at_pictures(
    records: Sequence[ImageRecord], root: Path | None, on_progress: Callable[[str], None]
) -> Pictures:
    """Opens the headers of up to 50,000 images, and decodes a sample of 200.

    The sample is spread evenly over the records, so that equal records give an equal sample.
    """
    are_all_opened = len(records) <= MAX_CHECKED
    opened = records if are_all_opened else _spread(records, SAMPLE)
    sizes, refused = _read_headers(opened, root, on_progress)
    sample = _spread([record for record in opened if record.path in sizes], SAMPLE)
    is_color, damaged = _look_at_colors(sample, root)
    refused |= damaged
    shorter = [sizes[record.path] for record in sample if record.path not in damaged]
    return Pictures(
        readable=[record for record in records if record.path not in refused],
        refused=refused,
        shorter_px=(min(shorter), round(statistics.median(shorter)), max(shorter))
        if shorter
        else (0, 0, 0),
        num_sampled=len(shorter),
        is_color=is_color,
        are_all_opened=are_all_opened,
    )


def find_byte_copies(
    records: Sequence[ImageRecord], root: Path | None, places: Mapping[str, Place]
) -> list[Copy]:
    """Returns each image with the same bytes as an earlier one, paired with that one.

    Only files of equal size are read. `dml prepare` also finds equal pixels and near-duplicates.
    """
    by_size: dict[int, list[ImageRecord]] = defaultdict(list)
    for record in records:
        if (size := _file_size(record)) is not None:
            by_size[size].append(record)
    candidates = [record for group in by_size.values() if len(group) > 1 for record in group]
    digests = [digest_record(record, root=root) for record in candidates]
    images = [
        FoundImage(record.path, record.class_name, digest, content=digest)
        for record, digest in zip(candidates, digests, strict=True)
        if digest != UNREADABLE
    ]
    return find_copies(images, places)


def count_reasons(refused: Mapping[str, str]) -> list[tuple[str, int, str]]:
    """Returns each reason, its number of images and the first path, most frequent first."""
    first: dict[str, str] = {}
    for path, reason in refused.items():
        first.setdefault(reason, path)
    counted = Counter(refused.values()).most_common()
    return [(reason, number, first[reason]) for reason, number in counted]


def _file_size(record: ImageRecord) -> int | None:
    try:
        return None if record.file is None else os.stat(record.file).st_size
    except OSError:
        return None


def _spread(records: Sequence[ImageRecord], number: int) -> Sequence[ImageRecord]:
    if len(records) <= number:
        return records
    return [records[index * len(records) // number] for index in range(number)]


def _read_headers(
    records: Sequence[ImageRecord], root: Path | None, on_progress: Callable[[str], None]
) -> tuple[dict[str, int], dict[str, str]]:
    """Returns the shorter side of each readable image, and the reason of each other one."""
    progress = Progress(on_progress, "opening images", len(records))
    sizes: dict[str, int] = {}
    refused: dict[str, str] = {}
    Image.init()
    known = [name for name in FORMATS if name in Image.OPEN]
    with warnings.catch_warnings():
        # Warnings about metadata are harmless, and check_size rejects bombs.
        warnings.simplefilter("ignore")
        for record in records:
            try:
                sizes[record.path] = _shorter_side(record, root, known)
            except BadImage as error:
                refused[record.path] = error.reason
            progress.step()
    return sizes, refused


def _shorter_side(record: ImageRecord, root: Path | None, known: list[str]) -> int:
    assert record.file is not None
    try:
        facts = os.lstat(record.file)
        if not stat.S_ISREG(facts.st_mode):
            # Links are followed only inside the dataset; pipes would block.
            content = read_image_bytes(record.file, root=root)
            with Image.open(io.BytesIO(content), formats=known) as image:
                width, height = image.size
        elif facts.st_size == 0:
            raise BadImage("is empty (zero bytes)")
        else:
            with Image.open(record.file, formats=known) as image:
                width, height = image.size
    except BadImage:
        raise
    except PermissionError as error:
        raise BadImage("may not be read: permission denied") from error
    except Exception as error:
        # Pillow's decoders raise many kinds of exceptions for crafted files.
        raise BadImage(_describe_unopened(record.file)) from error
    check_size(width, height)
    return min(width, height)


def _describe_unopened(file: Path) -> str:
    try:
        with open(file, "rb") as stream:
            start = stream.read(12)
    except OSError as error:
        return f"cannot be read: {error.strerror or error}"
    if start[4:12] in _HEIC_BRANDS:
        return "is HEIC, which has no decoder here"
    if start[4:12] in (b"ftypavif", b"ftypavis"):
        return "is AVIF, and is damaged or has no decoder here"
    return "is damaged, or not an image of a known format"


def _look_at_colors(
    sample: Sequence[ImageRecord], root: Path | None
) -> tuple[bool, dict[str, str]]:
    """Returns whether the sample is in colour, and the reason of each image without pixels."""
    num_color, damaged = 0, {}
    for record in sample:
        assert record.file is not None
        try:
            content = read_image_bytes(record.file, root=root)
            pixels = decode_image(content, color="rgb", enough_px=_ENOUGH_PX)
        except BadImage as error:
            damaged[record.path] = error.reason
            continue
        spread = pixels.max(axis=2).astype("float32") - pixels.min(axis=2)
        num_color += bool(spread.mean() >= MIN_SPREAD)
    return num_color >= max(1, MIN_COLOR_FRACTION * (len(sample) - len(damaged))), damaged
