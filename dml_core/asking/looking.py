"""Looks at a path with images, and finds the keys that read it and what a person should know."""

import os
import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from dml_core.asking.converting import (
    copy_class_folders,
    read_shards,
    read_split_folders,
    write_class_archive,
)
from dml_core.asking.failures import RAW, in_one_line, leaves_nothing, named_as
from dml_core.asking.path_kinds import (
    PathContent,
    convert_hint,
    find_content,
    find_in_folder,
    list_unlisted,
)
from dml_core.asking.pictures import (
    MAX_CHECKED,
    Pictures,
    count_reasons,
    find_byte_copies,
    look_at_pictures,
)
from dml_core.asking.saved_datasets import convert_hub_dataset, read_parquet, read_saved
from dml_core.asking.sides import choose_levels, choose_split, describe_sides
from dml_core.config.data import DATASET_NAMES, FolderData
from dml_core.data.duplicates import (
    ACROSS_SPLITS,
    describe_duplicates,
    find_similar_names,
    name_places,
    summarise,
)
from dml_core.data.records import DatasetError, SourceListing
from dml_core.data.sources.raw_search import archive_stem
from dml_core.data.splits import ClassSplit

HUB_PREFIX = "hf:"
MAX_NAME = 60
_SHOWN = 3


@dataclass(frozen=True)
class FoundData:
    """What a path holds, and the keys that read it."""

    data: dict[str, Any]
    """The keys of the section data that differ from the defaults of `FolderData`."""
    num_classes: int
    num_images: int
    """Images without those known to be unreadable."""
    shorter_px: tuple[int, int, int]
    """Smallest, median and largest shorter side of a sample of up to 200 images."""
    is_color: bool
    """Whether at least a tenth of the sample is in colour."""
    continuous: tuple[str, ...]
    """Columns with continuous labels; empty for classes."""
    images_per_class: tuple[int, float, int]
    """Smallest, mean and largest."""
    num_unreadable: int
    lines: tuple[str, ...]
    """What a person is shown, one fact each, with a label of 14 characters."""


def _ignore(text: str) -> None:
    """Reports nothing."""


def look_at(
    path: str,
    *,
    name: str,
    project: Path,
    chosen: Mapping[str, Any] = MappingProxyType({}),
    on_progress: Callable[[str], None] = _ignore,
) -> FoundData:
    """Returns what a path holds, and the keys that read it.

    The path is a tree of class folders, an archive of one, a CSV or Parquet table, a saved Hugging
    Face dataset, WebDataset shards, or `hf:owner/name`. The last three are converted once to one
    archive in data/raw of the project. The path itself is never changed.

    Args:
        path: the path, as given by a person.
        name: name of the dataset; see `safe_name`.
        project: folder of the project.
        chosen: keys of the section data that a person has set; they are not guessed.
        on_progress: called with a line about every two seconds.

    Raises:
        DatasetError: in one line, if the path cannot be used; nothing is left in the project.
    """
    request = _Request(name, project, chosen, on_progress)
    with leaves_nothing(path, name=name, project=project), in_one_line(path):
        if path.startswith(HUB_PREFIX):
            hub_name = path.removeprefix(HUB_PREFIX)
            notes = convert_hub_dataset(hub_name, request.archive, on_progress)
            return _look_converted(request, notes, Counter())
        _check_is_not_the_project(path, project)
        return _look(request, find_content(path, on_progress), {})


@dataclass(frozen=True)
class _Request:
    """What a look is for."""

    name: str
    project: Path
    chosen: Mapping[str, Any]
    on_progress: Callable[[str], None]

    @property
    def archive(self) -> Path:
        """Where images are converted to, if they must be."""
        return self.project / RAW / f"{self.name}.tar"

    def name_path(self, path: Path) -> str:
        """Returns a path as a study names it: relative to the project if it is inside."""
        absolute = Path(os.path.abspath(path))
        is_inside = absolute.is_relative_to(self.project)
        return (absolute.relative_to(self.project) if is_inside else absolute).as_posix()

    def config(self, keys: Mapping[str, Any]) -> FolderData:
        """Returns the section data that these keys give."""
        fields = {key.removeprefix("data."): value for key, value in keys.items()}
        raw, prepared = self.project / fields["raw"], self.project / "data/prepared"
        places = {"raw": str(raw), "prepared_root": str(prepared), "alias": self.name}
        return FolderData(**{**fields, **places})


def safe_name(text: str) -> str:
    """Returns a name for a dataset and a study from any path or hub address.

    Example:
        `/home/me/My "best" photos.tar.gz` gives My-best-photos.
    """
    if text.startswith(HUB_PREFIX):
        base = text.removeprefix(HUB_PREFIX)
    else:
        base = os.path.basename(os.path.abspath(os.path.expanduser(text)))
        base = archive_stem(base) or re.sub(r"\.(csv|parquet)$", "", base, flags=re.IGNORECASE)
    plain = unicodedata.normalize("NFKD", base).encode("ascii", "ignore").decode()
    plain = re.sub(r"-{2,}", "-", re.sub(r"[^A-Za-z0-9._-]+", "-", plain))
    plain = plain.strip("._-")[:MAX_NAME].strip("._-") or "images"
    return f"my-{plain}" if plain.lower() in DATASET_NAMES else plain


def _look(request: _Request, content: PathContent, raw: dict[str, Any]) -> FoundData:
    """Looks at what was found, after unpacking or converting it.

    Args:
        raw: the key data.raw if the content was unpacked from an archive.
    """
    if content.kind in ("shards", "arrow", "parquet", "splits") or content.stray:
        notes = _convert(request, content)
        stray = _describe_stray(content.stray)
        return _look_converted(request, (*content.notes, *notes, *stray), content.unlisted)
    if content.kind == "archive":
        keys = {"data.raw": request.name_path(content.path)}
        folder = _unpack(request, keys)
        with named_as(content.path, folder):
            inside = find_in_folder(folder, request.on_progress)
            if inside.kind == "archive":
                raise DatasetError(f"{folder} holds another archive. Unpack it yourself.")
            return _look(request, inside, keys)
    notes = content.notes
    if content.kind == "table":
        from dml_core.asking.tables import guess_columns

        guessed = guess_columns(content.path)
        keys = raw or {"data.raw": request.name_path(content.path.parent)}
        keys = {**keys, "data.table": content.path.name, **guessed.keys}
        if request.chosen.get("data.class_column"):
            keys.pop("data.continuous_labels", None)
        notes += tuple(_line("columns", line) for line in guessed.lines)
    else:
        keys = raw or {"data.raw": request.name_path(content.path)}
    return _describe(request, keys, notes, content.unlisted)


def _convert(request: _Request, content: PathContent) -> tuple[str, ...]:
    """Writes all images to one tar of class folders; returns lines about the source."""
    files = content.files
    if content.kind == "shards":
        samples, what = read_shards(files), f"{len(files):,} WebDataset shard(s)"
    elif content.kind == "arrow":
        samples, what = read_saved(content.path), "a saved Hugging Face dataset"
    elif content.kind == "parquet":
        samples, what = read_parquet(files), f"{len(files):,} Parquet file(s) with images"
    elif content.kind == "classes":
        # The reader of class folders takes every image for one of a class.
        return copy_class_folders(content.path, request.archive, on_progress=request.on_progress)
    else:
        names = ", ".join(folder.name for folder in files)
        samples, what = read_split_folders(files), f"the classes of {names} put together"
    return write_class_archive(samples, request.archive, what=what, on_progress=request.on_progress)


def _look_converted(request: _Request, notes: tuple[str, ...], unlisted: Counter[str]) -> FoundData:
    keys = {"data.raw": request.archive.relative_to(request.project).as_posix()}
    return _describe(request, keys, notes, unlisted)


def _unpack(request: _Request, keys: dict[str, Any]) -> Path:
    from dml_core.data.sources.folder import FOLDER
    from dml_core.data.sources.raw_search import RawSearch

    request.on_progress(f"unpacking {keys['data.raw']}")
    return RawSearch(request.config(keys), FOLDER).content_folder()


def _describe(
    request: _Request, keys: dict[str, Any], notes: tuple[str, ...], unlisted: Counter[str]
) -> FoundData:
    keys = {"data.name": "folder", "data.alias": request.name, **keys, **request.chosen}
    request.on_progress("reading the classes")
    keys, listing, nested = _list_images(request, keys)
    records = listing.records
    # Before the images are opened, which takes longer.
    choose_split(records, request.config(keys))
    pictures = look_at_pictures(records, listing.root, request.on_progress)
    continuous = tuple(keys.get("data.continuous_labels", ()))
    keys, refused_lines = _allow_refused(keys, pictures, len(records))
    fractions, split = choose_split(pictures.readable, request.config(keys))
    keys |= fractions
    copies = _find_copies(pictures, listing, split, is_continuous=bool(continuous))
    sizes = sorted(Counter(record.class_name for record in pictures.readable).values())
    lines = [
        *notes,
        *nested,
        *_describe_images(sizes, pictures, continuous),
        *_describe_unlisted(unlisted),
        *refused_lines,
        _line("split", f"{describe_sides(split)} ({'images' if continuous else 'classes'})"),
        *copies,
    ]
    # Without it, copies that only `dml prepare` can see would stop the study there.
    keys.setdefault("data.on_leak", "drop")
    defaults = FolderData()
    return FoundData(
        data={
            key: value
            for key, value in keys.items()
            if key == "data.name" or value != getattr(defaults, key.removeprefix("data."))
        },
        num_classes=len(sizes),
        num_images=len(pictures.readable),
        shorter_px=pictures.shorter_px,
        is_color=pictures.is_color,
        continuous=continuous,
        images_per_class=(sizes[0], len(pictures.readable) / len(sizes), sizes[-1]),
        num_unreadable=len(pictures.refused) + sum(unlisted.values()),
        lines=tuple(lines),
    )


def _list_images(
    request: _Request, keys: dict[str, Any]
) -> tuple[dict[str, Any], SourceListing, list[str]]:
    """Returns the keys with the level of class folders, the images, and a line about the level."""
    from dml_core.data.prepare import keep_first_of_each_class, sort_and_check
    from dml_core.data.sources.folder import list_folder

    listing, lines = list_folder(request.config(keys)), []
    if "data.table" not in keys and "data.class_levels" not in keys:
        levels, text = choose_levels(listing.records)
        lines = [_line("class folders", text)] if text else []
        if levels > 1:
            keys = {**keys, "data.class_levels": levels}
            listing = list_folder(request.config(keys))
    records = sort_and_check(listing.records, dataset=request.name)
    records = keep_first_of_each_class(records, request.config(keys).max_images_per_class)
    return keys, replace(listing, records=records), lines


def _line(label: str, text: str) -> str:
    return f"{label:<14}{text}"


def _describe_images(
    sizes: Sequence[int], pictures: Pictures, continuous: Sequence[str]
) -> list[str]:
    number = len(pictures.readable)
    if continuous:
        lines = [_line("images", f"{number:,} with numbers: {', '.join(continuous)}")]
    else:
        mean = number / len(sizes)
        lines = [
            _line("classes", f"{len(sizes):,}"),
            _line("images", f"{number:,}: {sizes[0]:,} to {sizes[-1]:,} a class, mean {mean:.1f}"),
        ]
    smallest, median, largest = pictures.shorter_px
    looked = f"{pictures.num_sampled} images looked at"
    lines += [
        _line("sizes", f"shorter side {smallest} to {largest} px, median {median} ({looked})"),
        _line("colours", "in colour" if pictures.is_color else "gray"),
    ]
    lone = sum(size == 1 for size in sizes)
    if lone and not continuous:
        text = "1 class has" if lone == 1 else f"{lone:,} classes have"
        lines.append(_line("small", f"{text} one image: no positive pairs, and not scored"))
    return lines


def _describe_stray(stray: Sequence[str]) -> tuple[str, ...]:
    if not stray:
        return ()
    shown = ", ".join(stray[:_SHOWN]) + (", ..." if len(stray) > _SHOWN else "")
    images = "1 image" if len(stray) == 1 else f"{len(stray):,} images"
    return (_line("left out", f"{images} beside the class folders: {shown}"),)


def _describe_unlisted(unlisted: Counter[str]) -> list[str]:
    if not unlisted:
        return []
    suffix, _ = unlisted.most_common(1)[0]
    found = f"{list_unlisted(unlisted)} left out"
    return [_line("cannot read", f"{found}; {convert_hint(suffix)}")]


def _allow_refused(
    keys: dict[str, Any], pictures: Pictures, total: int
) -> tuple[dict[str, Any], list[str]]:
    """Returns the keys with which `dml prepare` accepts the unreadable images, and says so."""
    number = len(pictures.refused)
    if not number:
        return keys, []
    reasons = count_reasons(pictures.refused)
    shown = "; ".join(
        f"{path} {reason}" + (f" (and {count - 1:,} more)" if count > 1 else "")
        for reason, count, path in reasons[:_SHOWN]
    )
    is_heic = any("HEIC" in reason or "AVIF" in reason for reason, _, _ in reasons)
    remedy = convert_hint(".heic") if is_heic else "replace or remove them"
    opened = total if pictures.are_all_opened else pictures.num_sampled + number
    if 2 * number > opened:
        raise DatasetError(
            f"at least half of the images must be readable. Found {number:,} of {opened:,} that "
            f"are not: {shown}. To use them, {remedy}"
        )
    fraction = number / opened
    if fraction > FolderData().max_refused_fraction:
        # Some more may be damaged below their headers, which only the preparation sees.
        keys = {**keys, "data.max_refused_fraction": min(1.0, round(fraction + 0.02, 2))}
    return keys, [_line("cannot read", f"{number:,} of {opened:,} left out: {shown}; {remedy}")]


def _find_copies(
    pictures: Pictures, listing: SourceListing, split: ClassSplit, *, is_continuous: bool
) -> list[str]:
    """Returns a line for each kind of copies, and of class names that are nearly equal."""
    if not pictures.are_all_opened:
        text = f"not searched here with over {MAX_CHECKED:,} images; the preparation does"
        return [_line("copies", text)]
    places = name_places(split)
    copies = find_byte_copies(pictures.readable, listing.root, places)
    found = summarise(
        copies,
        {},
        num_dropped=sum(copy.relation == ACROSS_SPLITS for copy in copies),
        similar_names=[] if is_continuous else find_similar_names(places),
    )
    lines = describe_duplicates(found) or ["none with the same bytes"]
    lines.append("the preparation also compares pixels and finds near-duplicates")
    return [_line("copies", line) for line in lines]


def _check_is_not_the_project(path: str, project: Path) -> None:
    source = os.path.realpath(os.path.expanduser(path))
    if project.resolve().is_relative_to(source):
        raise DatasetError(f"{path} holds this project itself. Give the folder of the images.")
