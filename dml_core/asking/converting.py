"""Converts shards, saved datasets and split folders to one archive of class folders."""

import filecmp
import io
import json
import os
import re
import secrets
import tarfile
import unicodedata
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dml_core.asking.pictures import Progress
from dml_core.data.archives import MAX_MEMBERS
from dml_core.data.atomic_folder import folder_lock
from dml_core.data.packing import MAX_FILE_BYTES
from dml_core.data.records import DatasetError
from dml_core.data.sources.raw_search import UNPACKED_SUFFIX

LABEL_KEYS = ("label", "class", "cls", "class_name", "category")
"""Fields with the class in the JSON file of a sample, in order of preference."""
_PICTURE_PARTS = ("jpg", "jpeg", "png", "webp", "gif", "bmp", "tif", "tiff", "avif", "heic")
_PEEKED = 64
_MAX_FOLDER_BYTES = 150
_FEW_STRAY = 3
_STRAY_SHARE = 0.05
_SIGNATURES = (
    (0, b"\xff\xd8\xff", ".jpg"),
    (0, b"\x89PNG", ".png"),
    (8, b"WEBP", ".webp"),
    (0, b"GIF8", ".gif"),
    (0, b"BM", ".bmp"),
    (0, b"II*\x00", ".tif"),
    (0, b"MM\x00*", ".tif"),
)


@dataclass(frozen=True)
class Sample:
    """One image with its class, as a source gives it; None for a missing part."""

    label: str | None
    content: bytes | None


@dataclass
class ClassFolders:
    """Gives each class a folder name that is safe and that no other class has."""

    names: dict[str, str] = field(default_factory=dict)
    _taken: set[str] = field(default_factory=set)

    def folder_of(self, label: str) -> str:
        """Returns the folder of a class."""
        if label not in self.names:
            base = make_folder_name(label)
            name, number = base, 2
            # Folded, because some file systems ignore case.
            while name.casefold() in self._taken:
                name, number = f"{base}-{number}", number + 1
            self._taken.add(name.casefold())
            self.names[label] = name
        return self.names[label]


def make_folder_name(label: str) -> str:
    """Returns a label as the name of one visible folder."""
    text = unicodedata.normalize("NFC", label.encode("utf-8", "replace").decode())
    text = re.sub(r"[/\\\x00-\x1f\x7f]+", "_", text).strip()
    text = text.encode()[:_MAX_FOLDER_BYTES].decode(errors="ignore").strip()
    if not text.strip("."):
        return "_"
    is_hidden = text.startswith((".", "__MACOSX")) or text.endswith(UNPACKED_SUFFIX)
    return f"_{text}".replace(UNPACKED_SUFFIX, "_unpacked") if is_hidden else text


def write_class_archive(
    samples: Iterator[Sample], target: Path, *, what: str, on_progress: Callable[[str], None]
) -> tuple[str, ...]:
    """Writes samples to a tar with one folder per class, completely or not at all.

    Equal samples give equal bytes, so that an existing archive of the same samples is kept.

    Raises:
        DatasetError: without usable samples, or if the target holds something else.
    """
    folders, missing = ClassFolders(), Counter[str]()
    progress = Progress(on_progress, f"converting images to {target.name}")
    with _written_archive(target) as tar:
        for sample in samples:
            _add(tar, sample, folders, missing, progress)
        _check_usable(progress.done, missing, what)
    lines = [f"{'converted':<14}{what}, to {target.parent.name}/{target.name}"]
    lines += [
        f"{'left out':<14}{number:,} samples without {part}" for part, number in missing.items()
    ]
    renamed = [(label, name) for label, name in folders.names.items() if label != name]
    if renamed:
        label, name = renamed[0]
        lines.append(f"{'renamed':<14}{len(renamed):,} classes, such as {label!r} to {name!r}")
    return tuple(lines)


def copy_class_folders(
    root: Path, target: Path, *, on_progress: Callable[[str], None]
) -> tuple[str, ...]:
    """Writes the images below the folders of a tree to a tar, without those beside the folders."""
    progress = Progress(on_progress, f"copying images to {target.name}")
    with _written_archive(target) as tar:
        for parts, file in _list_pictures(root):
            if len(parts) > 1:
                member = tarfile.TarInfo("/".join(parts))
                member.size = file.stat().st_size
                with file.open("rb") as content:
                    tar.addfile(member, content)
                progress.step()
    return (f"{'copied':<14}the class folders to {target.parent.name}/{target.name}",)


@contextmanager
def _written_archive(target: Path) -> Iterator[tarfile.TarFile]:
    """Yields a tar that is put in its place once it is complete."""
    with folder_lock(target):
        partial = target.with_name(f".{target.name}.partial-{secrets.token_hex(4)}")
        try:
            with tarfile.open(partial, "w", format=tarfile.PAX_FORMAT) as tar:
                yield tar
            _put_in_place(partial, target)
        finally:
            partial.unlink(missing_ok=True)


def _add(
    tar: tarfile.TarFile,
    sample: Sample,
    folders: ClassFolders,
    missing: Counter[str],
    progress: Progress,
) -> None:
    if sample.label is None or not sample.label.strip():
        missing["a class"] += 1
    elif not sample.content:
        missing["an image"] += 1
    else:
        folder = folders.folder_of(sample.label)
        # A fixed time and owner, which TarInfo has by default, keep the bytes equal.
        member = tarfile.TarInfo(f"{folder}/{progress.done:07d}{_suffix_of(sample.content)}")
        member.size = len(sample.content)
        tar.addfile(member, io.BytesIO(sample.content))
        progress.step()


def _suffix_of(content: bytes) -> str:
    # Images are opened by content, so one of another format is still read or refused by it.
    matches = (end for start, mark, end in _SIGNATURES if content.startswith(mark, start))
    return next(matches, ".jpg")


def _check_usable(number: int, missing: Counter[str], what: str) -> None:
    if not number:
        found = ", ".join(f"{count:,} without {part}" for part, count in missing.items())
        raise DatasetError(
            f"{what} must have images with classes. Found none{f', but {found}' if found else ''}."
        )


def _put_in_place(partial: Path, target: Path) -> None:
    if not target.exists():
        os.replace(partial, target)
    elif not filecmp.cmp(partial, target, shallow=False):
        raise DatasetError(
            f"{target} must be free for the converted images. Found other content there. Choose "
            "another name with --name, or remove that file."
        )


def are_few_stray(number: int, total: int) -> bool:
    """Returns whether so many images of all lie beside the class folders by mistake."""
    return number <= max(_FEW_STRAY, _STRAY_SHARE * total)


def read_split_folders(folders: tuple[Path, ...]) -> Iterator[Sample]:
    """Yields the images of folders such as train and test, each with one folder per class.

    Raises:
        DatasetError: if one of them has many images without class folders.
    """
    for folder in folders:
        found = list(_list_pictures(folder))
        stray = [file.name for parts, file in found if len(parts) == 1]
        if not are_few_stray(len(stray), len(found)):
            raise DatasetError(
                f"{folder} must hold one folder per class. Found {stray[0]} without one. Move "
                "the images into class folders, or add a CSV with the columns path and class."
            )
        for parts, file in found:
            is_large = file.stat().st_size > MAX_FILE_BYTES
            label = parts[0] if len(parts) > 1 else None
            yield Sample(label, None if is_large else file.read_bytes())


def _list_pictures(root: Path) -> Iterator[tuple[tuple[str, ...], Path]]:
    """Yields the images that are not hidden, in the order of their paths relative to the root."""
    from dml_core.data.sources.folder import IMAGE_SUFFIXES

    for file in sorted(root.rglob("*")):
        parts = file.relative_to(root).parts
        is_hidden = any(part.startswith((".", "__MACOSX")) for part in parts)
        if not is_hidden and file.suffix.lower() in IMAGE_SUFFIXES and file.is_file():
            yield parts, file


def is_shard(archive: Path) -> bool:
    """Returns whether the first samples of a tar have an image and a label under one key."""
    try:
        for number, parts in enumerate(_read_samples(archive)):
            if _label_of(parts) is not None and _picture_of(parts) is not None:
                return True
            if number >= _PEEKED:
                return False
    except DatasetError:
        # Damaged archives are reported when they are unpacked.
        return False
    return False


def read_shards(shards: tuple[Path, ...]) -> Iterator[Sample]:
    """Yields the samples of WebDataset shards, in the order of their names."""
    for shard in sorted(shards):
        for parts in _read_samples(shard):
            label, picture = _label_of(parts), _picture_of(parts)
            if label is not None or picture is not None:
                yield Sample(label, picture)


def _read_samples(shard: Path) -> Iterator[dict[str, bytes]]:
    """Yields the parts of each sample by suffix; members of one sample are adjacent."""
    with _damage_named(shard), tarfile.open(shard, "r|*") as tar:
        former, parts = "", dict[str, bytes]()
        for number, member in enumerate(tar):
            if number >= MAX_MEMBERS:
                raise DatasetError(f"shard {shard} has more than {MAX_MEMBERS:,} members.")
            folder, _, name = member.name.rpartition("/")
            base, _, suffix = name.partition(".")
            key, suffix = f"{folder}/{base}", suffix.lower()
            if not member.isreg() or not base:
                continue
            if key != former and parts:
                yield parts
                parts = {}
            former = key
            if _is_used(suffix) and member.size <= MAX_FILE_BYTES:
                stream = tar.extractfile(member)
                parts[suffix] = stream.read() if stream is not None else b""
        if parts:
            yield parts


def _is_used(suffix: str) -> bool:
    return suffix in ("cls", "json") or suffix.rpartition(".")[2] in _PICTURE_PARTS


def _picture_of(parts: dict[str, bytes]) -> bytes | None:
    found = (v for suffix, v in parts.items() if suffix.rpartition(".")[2] in _PICTURE_PARTS)
    return next(found, None)


def _label_of(parts: dict[str, bytes]) -> str | None:
    if "cls" in parts:
        return parts["cls"].decode("utf-8", "replace").strip() or None
    try:
        values: Any = json.loads(parts.get("json", b"null"))
    except ValueError:
        return None
    if not isinstance(values, dict):
        return None
    labels = (values[key] for key in LABEL_KEYS if isinstance(values.get(key), str | int))
    label = next(labels, None)
    return None if label is None else str(label).strip() or None


@contextmanager
def _damage_named(shard: Path) -> Iterator[None]:
    try:
        yield
    except (tarfile.TarError, EOFError, zlib.error) as error:
        raise DatasetError(
            f"shard {shard} is damaged or truncated ({error}). Download it again."
        ) from error
    except OSError as error:
        # Decompressors raise an OSError without errno for bad data.
        if error.errno is None:
            raise DatasetError(f"shard {shard} is damaged ({error}).") from error
        raise
