"""Finds duplicates in a dataset: equal images, near-duplicates, and similar class names.

Two images are equal if their packed pixels are equal, whatever their file format. They are
near-duplicates if the signs of 63 low frequencies (a perceptual hash) differ in few places and the
frequencies are almost proportional.
"""

# N = images, H = height, W = width, C = channels

import csv
import functools
import hashlib
import re
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dml_core.config.data import DataBase
from dml_core.data.records import DatasetError
from dml_core.data.splits import ClassSplit
from dml_core.data.spreadsheet_cells import protect_cell

ACROSS_SPLITS = "across splits"
WITHIN_CLASS = "within a class"
ACROSS_CLASSES = "across classes"
RELATIONS = (ACROSS_SPLITS, WITHIN_CLASS, ACROSS_CLASSES)

MAX_HASH_DISTANCE = 8
"""Largest number of different signs, of 63, between near-duplicates."""
MIN_SIMILARITY = 0.99
"""Smallest cosine between the frequencies of near-duplicates."""
MIN_CONTRAST = 2.0
"""Images with less variation, in gray levels, are blank, and all would look alike."""
MAX_COMPARED = 300_000
"""Near-duplicates are not searched above this number of images: the time is quadratic."""
MAX_LISTED = 10_000
"""Near-duplicate pairs listed per relation; all are counted."""

_FREQUENCIES = 8
_SAMPLED_LINES = 56
_BASIS_SCALE = 64
_TILE = (64, 4096)
_SHOWN = 5
_CSV_COLUMNS = (
    *("relation", "equality", "similarity", "path", "class", "split"),
    *("copy_of", "copy_of_class", "copy_of_split"),
)


@dataclass(frozen=True)
class Place:
    """The use of a class; of two copies, the one with the higher rank is dropped."""

    rank: int
    name: str
    """test, validation or train; with several folds, the fold that the class validates."""


@dataclass(frozen=True)
class FoundImage:
    """One image in the search for duplicates."""

    path: str
    class_name: str
    digest: str
    """sha256 of its source."""
    content: str
    """Equal for equal images."""


@dataclass(frozen=True)
class Copy:
    """Two images that are equal or look alike."""

    relation: str
    equality: str
    """same bytes, same pixels, or looks alike."""
    path: str
    class_name: str
    place: str
    other_path: str
    """The original: the test image, if one of them is a test image."""
    other_class: str
    other_place: str
    similarity: float = 1.0


def name_places(split: ClassSplit) -> dict[str, Place]:
    """Returns the place of each class."""
    places = {name: Place(1 + len(split.folds), "train") for name in split.development}
    for number, fold in enumerate(split.folds):
        text = "validation" if len(split.folds) == 1 else f"fold {number}"
        places |= dict.fromkeys(fold, Place(1 + number, text))
    return places | dict.fromkeys(split.test, Place(0, "test"))


def find_copies(images: Iterable[FoundImage], places: Mapping[str, Place]) -> list[Copy]:
    """Returns each image that equals an earlier one, paired with that one.

    The order is by place (test, validation, train), then by path. Each image is paired only with
    the first of its equals, so that 1,000 blank images give 999 copies, not half a million.
    """
    groups: dict[str, list[FoundImage]] = defaultdict(list)
    for image in images:
        groups[image.content].append(image)
    copies = []
    for group in groups.values():
        first, *others = sorted(group, key=lambda each: (places[each.class_name].rank, each.path))
        for image in others:
            equality = "same bytes" if image.digest == first.digest else "same pixels"
            copies.append(_pair(image, first, places, equality))
    return sorted(copies, key=lambda copy: (RELATIONS.index(copy.relation), copy.path))


def compute_fingerprint(pixels: np.ndarray) -> np.ndarray:
    """Returns (63,) float32: the lowest frequencies of an image without its mean, in gray levels.

    Args:
        pixels: (H, W, C) uint8; of three channels, green is used as brightness.
    """
    # 56 lines suffice for eight frequencies and cost a fraction of decoding the image.
    step = max(1, min(pixels.shape[:2]) // _SAMPLED_LINES)
    pixels = pixels[step // 2 :: step, step // 2 :: step]
    height, width, channels = pixels.shape
    # Sums of integer products are exact in the chosen type, so all machines and numbers of threads
    # give the same bits.
    exact = "float32" if height <= 1024 else "float64"
    rows = _basis(height, exact) @ pixels[:, :, channels // 2].astype(exact)
    table = rows.astype("float64") @ _basis(width, "float64").T
    scale = 2 / (height * width * _BASIS_SCALE**2)
    return np.asarray(table.ravel()[1:] * scale, dtype=np.float32)


def hash_fingerprints(fingerprints: np.ndarray) -> np.ndarray:
    """Returns (N,) uint64, the signs of (N, 63) fingerprints."""
    return np.packbits(fingerprints > 0, axis=1).view(np.uint64).reshape(-1)


def find_similar_names(places: Mapping[str, Place]) -> list[dict[str, str]]:
    """Returns groups of class names that differ only in case, spaces or Unicode form."""
    groups: dict[str, dict[str, str]] = defaultdict(dict)
    for name in sorted(places):
        plain = unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", name).casefold())
        groups[re.sub(r"[\s_-]+", " ", plain).strip()][name] = places[name].name
    return [group for group in groups.values() if len(group) > 1]


class DuplicateSearch:
    """Collects the packed images of one preparation and finds duplicates."""

    def __init__(self, split: ClassSplit) -> None:
        self._places = name_places(split)
        self._images: list[FoundImage] = []
        self._shapes: list[tuple[int, ...]] = []
        self._readers: list[Callable[[], bytes]] = []
        self._fingerprints: list[np.ndarray] = []

    def add(
        self,
        image: FoundImage,
        *,
        shape: tuple[int, ...],
        fingerprint: np.ndarray,
        read: Callable[[], bytes],
    ) -> None:
        """Adds an image.

        Args:
            image: the image; `find_equal` sets its content.
            shape: shape of its pixels.
            fingerprint: from `compute_fingerprint`.
            read: returns the bytes of its pixels; called by `find_equal`, if at all.
        """
        self._images.append(image)
        self._shapes.append(shape)
        self._fingerprints.append(fingerprint)
        self._readers.append(read)

    def find_equal(self) -> list[Copy]:
        """Returns the images with the same packed pixels as an earlier one."""
        if not self._images:
            return []
        hashes = hash_fingerprints(np.stack(self._fingerprints)).tolist()
        alike: dict[tuple[int, tuple[int, ...]], list[int]] = defaultdict(list)
        for index, key in enumerate(zip(hashes, self._shapes, strict=True)):
            alike[key].append(index)
        # Only these few are read again: equal images have equal fingerprints.
        candidates = [indices for indices in alike.values() if len(indices) > 1]
        equal = [image for indices in candidates for image in self._with_content(indices)]
        return find_copies(equal, self._places)

    def _with_content(self, indices: Sequence[int]) -> list[FoundImage]:
        content: dict[str, str] = {}
        for index in indices:
            digest = self._images[index].digest
            if digest not in content:
                pixels = str(self._shapes[index]).encode() + self._readers[index]()
                content[digest] = hashlib.sha256(pixels).hexdigest()
        images = [self._images[index] for index in indices]
        return [
            FoundImage(each.path, each.class_name, each.digest, content[each.digest])
            for each in images
        ]

    def find_alike(self, *, without: Collection[str]) -> tuple[list[Copy], Counter[str]] | None:
        """Returns near-duplicate pairs up to a limit, and their number by relation.

        Args:
            without: paths of known copies, which are skipped.

        Returns:
            None if there are more than `MAX_COMPARED` images.
        """
        left_out = set(without)
        kept = [i for i, image in enumerate(self._images) if image.path not in left_out]
        if len(kept) > MAX_COMPARED:
            return None
        if not kept:
            return [], Counter()
        fingerprints = np.stack([self._fingerprints[index] for index in kept])
        contrast = np.linalg.norm(fingerprints, axis=1)
        has_contrast = contrast >= MIN_CONTRAST
        images = [
            self._images[index] for index, chosen in zip(kept, has_contrast, strict=True) if chosen
        ]
        fingerprints = fingerprints[has_contrast]
        return self._compare(images, fingerprints, contrast[has_contrast])

    def _compare(
        self, images: list[FoundImage], fingerprints: np.ndarray, contrast: np.ndarray
    ) -> tuple[list[Copy], Counter[str]]:
        units = fingerprints / contrast[:, None]
        ranks = np.array([self._places[image.class_name].rank for image in images])
        numbers = {name: number for number, name in enumerate(self._places)}
        classes = np.array([numbers[image.class_name] for image in images])
        counts: Counter[str] = Counter()
        listed: list[Copy] = []
        for one, other, similarity in _similar_pairs(units):
            is_across = ranks[one] != ranks[other]
            is_within = classes[one] == classes[other]
            for relation, chosen in (
                (ACROSS_SPLITS, is_across),
                (WITHIN_CLASS, ~is_across & is_within),
                (ACROSS_CLASSES, ~is_across & ~is_within),
            ):
                found = np.flatnonzero(chosen)
                room = max(0, MAX_LISTED - counts[relation])
                counts[relation] += len(found)
                for index in found[:room]:
                    pair = sorted(
                        (images[one[index]], images[other[index]]),
                        key=lambda each: (self._places[each.class_name].rank, each.path),
                    )
                    value = float(similarity[index])
                    listed.append(_pair(pair[1], pair[0], self._places, "looks alike", value))
        listed.sort(key=lambda copy: (RELATIONS.index(copy.relation), -copy.similarity, copy.path))
        return listed, counts


def summarise(
    equal: Sequence[Copy],
    alike: Mapping[str, int] | None,
    *,
    num_dropped: int,
    similar_names: Sequence[Mapping[str, str]],
) -> dict[str, Any]:
    """Returns the summary of duplicates in dataset.json."""
    counted = Counter(copy.relation for copy in equal)
    return {
        "equal": {relation: counted[relation] for relation in RELATIONS},
        "alike": None if alike is None else {name: int(alike.get(name, 0)) for name in RELATIONS},
        "dropped": num_dropped,
        "similar_class_names": [dict(group) for group in similar_names],
    }


def describe_duplicates(found: Mapping[str, Any]) -> list[str]:
    """Returns one line for each kind of duplicates in a prepared dataset.

    Args:
        found: from `summarise`; empty for data of versions that did not count duplicates.
    """
    if not found:
        return []
    equal, alike = found["equal"], found["alike"]
    lines = [describe_leaks(found)] if equal[ACROSS_SPLITS] else []
    if equal[WITHIN_CLASS]:
        lines.append(f"{_count(equal[WITHIN_CLASS], 'image')} equal to another of the same class")
    if equal[ACROSS_CLASSES]:
        text = f"{_count(equal[ACROSS_CLASSES], 'image')} equal to one of another class"
        lines.append(f"{text} in the same split")
    if alike is None:
        lines.append(f"near-duplicates were not searched, with over {MAX_COMPARED:,} images")
    elif any(alike.values()):
        listed = ", ".join(f"{alike[name]:,} {name}" for name in RELATIONS if alike[name])
        lines.append(f"near-duplicates, in pairs: {listed}")
    return lines + _describe_names(found["similar_class_names"])


def describe_leaks(found: Mapping[str, Any]) -> str:
    """Returns the number of images that equal one of another split, and whether they were kept."""
    text = f"{_count(found['equal'][ACROSS_SPLITS], 'image')} equal to one of another split"
    return f"{text}, {'dropped' if found['dropped'] else 'kept'} (data.on_leak)"


def check_no_leaks(copies: Sequence[Copy], config: DataBase) -> None:
    """Raises DatasetError for copies across splits and lists them in `leaks_file`."""
    leaks = [copy for copy in copies if copy.relation == ACROSS_SPLITS]
    if not leaks:
        return
    file = leaks_file(config)
    file.parent.mkdir(parents=True, exist_ok=True)
    write_copies(leaks, file)
    first = "".join(
        f"\n  - {copy.path!r} ({copy.place}) and {copy.other_path!r} ({copy.other_place}): "
        f"{copy.equality}"
        for copy in leaks[:_SHOWN]
    )
    raise DatasetError(
        f"dataset {config.folder_name!r} must not have an image in two of train, validation and "
        f"test, because scores are for unseen images. Found {_count(len(leaks), 'copy')}, all "
        f"listed in {file}. Remove them, or set data.on_leak: drop removes them from the training "
        f"side, allow keeps them. The first:{first}"
    )


def leaks_file(config: DataBase) -> Path:
    """Returns the file that lists the leaks of a refused dataset, beside its prepared folder."""
    return config.prepared_path.with_name(f"{config.folder_name}.leaks.csv")


def write_copies(copies: Iterable[Copy], file: Path) -> None:
    """Writes copies to a CSV file without cells that a spreadsheet would run as formulas."""
    with file.open("w", encoding="utf-8", errors="backslashreplace", newline="") as stream:
        writer = csv.writer(stream, lineterminator="\n", quoting=csv.QUOTE_ALL)
        writer.writerow(_CSV_COLUMNS)
        for copy in copies:
            texts = [copy.path, copy.class_name, copy.place]
            texts += [copy.other_path, copy.other_class, copy.other_place]
            value = f"{copy.similarity:.4f}"
            writer.writerow((copy.relation, copy.equality, value, *map(protect_cell, texts)))


def _pair(
    image: FoundImage,
    other: FoundImage,
    places: Mapping[str, Place],
    equality: str,
    similarity: float = 1.0,
) -> Copy:
    own, others = places[image.class_name], places[other.class_name]
    same_class = image.class_name == other.class_name
    within = WITHIN_CLASS if same_class else ACROSS_CLASSES
    return Copy(
        relation=within if own.rank == others.rank else ACROSS_SPLITS,
        equality=equality,
        path=image.path,
        class_name=image.class_name,
        place=own.name,
        other_path=other.path,
        other_class=other.class_name,
        other_place=others.name,
        similarity=similarity,
    )


def _similar_pairs(units: np.ndarray) -> Iterable[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Yields indices and cosines of near-duplicate pairs, tile by tile to bound memory.

    Args:
        units: (N, 63) fingerprints of unit length.
    """
    if len(units) < 2:
        return
    # The cosine bounds the distance, and so the difference along each axis. In the order along the
    # axis of largest variance, only nearby vectors need to be compared.
    reach = np.sqrt(2 - 2 * MIN_SIMILARITY) + 1e-6
    values = units[:, int(np.argmax(units.var(axis=0)))]
    order = np.argsort(values, kind="stable")
    values, units = values[order], units[order]
    hashes = hash_fingerprints(units)
    height, width = _TILE
    for top in range(0, len(hashes), height):
        rows = hashes[top : top + height, None]
        end = int(np.searchsorted(values, values[top + len(rows) - 1] + reach, side="right"))
        for left in range(top, end, width):
            distances = np.bitwise_count(rows ^ hashes[None, left : min(end, left + width)])
            one, other = np.nonzero(distances <= MAX_HASH_DISTANCE)
            one, other = one + top, other + left
            is_new = one < other
            one, other = one[is_new], other[is_new]
            similarity = np.einsum("ij,ij->i", units[one], units[other])
            chosen = similarity >= MIN_SIMILARITY
            if chosen.any():
                yield order[one[chosen]], order[other[chosen]], similarity[chosen]


@functools.lru_cache(maxsize=1024)
def _basis(length: int, dtype: str) -> np.ndarray:
    """Returns (8, length) cosines of the lowest frequencies, rounded to integers."""
    frequency, position = np.arange(_FREQUENCIES)[:, None], np.arange(length)
    cosines = np.cos(np.pi * frequency * (2 * position + 1) / (2 * length))
    cosines[0] /= np.sqrt(2)
    return np.asarray(np.round(_BASIS_SCALE * cosines), dtype=dtype)


def _describe_names(groups: Sequence[Mapping[str, str]]) -> list[str]:
    if not groups:
        return []
    # Groups across splits come first.
    ordered = sorted(groups, key=lambda group: len(set(group.values())) < 2)
    shown = "; ".join(
        " and ".join(f"{name!r} ({place})" for name, place in group.items())
        for group in ordered[:_SHOWN]
    )
    more = f"; and {len(groups) - _SHOWN:,} more" if len(groups) > _SHOWN else ""
    return [f"class names that are probably the same class: {shown}{more}"]


def _count(number: int, noun: str) -> str:
    many = {"copy": "copies", "image": "images"}[noun]
    return f"{number:,} {noun if number == 1 else many}"
