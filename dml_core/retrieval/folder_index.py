"""The index of a folder of images: its files and their embeddings, in memory and on disk."""

# D = embedding dim, N = images

import json
import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import pyarrow as pa
import pyarrow.parquet as pq

from dml_core.data.atomic_folder import replaced_folder
from dml_core.evaluation.arrays import FloatArray, Metric
from dml_core.retrieval.image_files import FileStamp
from dml_core.retrieval.vector_index import VectorIndex

FORMAT = "dml-folder-index-1"
FACTS_FILE = "index.json"
FILES_FILE = "files.parquet"
VECTORS_FILE = "index.faiss"
MODEL_FOLDER = "model"


@dataclass(frozen=True)
class Neighbor:
    """An image near to a query."""

    position: int
    path: str
    """Below the indexed folder."""
    score: float
    """Cosine similarity, or Euclidean distance."""


@dataclass
class FolderIndex:
    """The images of a folder and their embeddings."""

    root: Path
    metric: Metric
    origin: dict[str, Any]
    """Which model made it."""
    files: list[str] = field(default_factory=list)
    """Path below the root of each position."""
    stamps: list[FileStamp] = field(default_factory=list)
    unreadable: dict[str, tuple[FileStamp, str]] = field(default_factory=dict)
    """Stamp and reason of each file that could not be read."""
    vectors: VectorIndex | None = None
    """None without a readable image."""

    def __len__(self) -> int:
        return len(self.files)

    def search(self, embeddings: FloatArray, count: int) -> list[list[Neighbor]]:
        """Returns the nearest images of each of (N, D) embeddings, nearest first."""
        if self.vectors is None:
            return [[] for _ in embeddings]
        scores, positions = self.vectors.search(embeddings, count)
        return [
            [
                Neighbor(int(position), self.files[position], float(score))
                for score, position in zip(*row, strict=True)
                # A graph may find fewer.
                if position >= 0
            ]
            for row in zip(scores, positions, strict=True)
        ]

    def file(self, position: int) -> Path:
        """Returns the path of an indexed image."""
        return self.root / self.files[position]

    def drop(self, paths: set[str]) -> None:
        """Removes images from the index."""
        kept = [row for row, path in enumerate(self.files) if path not in paths]
        self.unreadable = {p: found for p, found in self.unreadable.items() if p not in paths}
        if len(kept) == len(self.files):
            return
        if self.vectors is not None:
            stored = self.vectors.vectors()[kept]
            # Flat for now: `extend` or `settle` chooses the kind of all that remains.
            self.vectors = (
                VectorIndex.build(stored, metric=self.metric, exact_below=len(stored) + 1)
                if kept
                else None
            )
        self.files = [self.files[row] for row in kept]
        self.stamps = [self.stamps[row] for row in kept]

    def extend(
        self, files: Sequence[str], stamps: Sequence[FileStamp], embeddings: FloatArray
    ) -> None:
        """Adds images with their (N, D) embeddings."""
        if not files:
            return
        if self.vectors is None:
            # As in `drop`: flat for now.
            count = len(embeddings) + 1
            self.vectors = VectorIndex.build(embeddings, metric=self.metric, exact_below=count)
        else:
            self.vectors.add(embeddings)
        self.files += files
        self.stamps += stamps

    def settle(self, *, exact_below: int) -> bool:
        """Replaces the exact search by a graph, or the reverse, as the number of images requires.

        Returns whether it was replaced.
        """
        if self.vectors is None:
            return False
        wanted = "flat" if len(self) < exact_below else "hnsw"
        if self.vectors.kind == wanted:
            self.vectors.tune()
            return False
        self.vectors = VectorIndex.build(
            self.vectors.vectors(), metric=self.metric, exact_below=exact_below
        )
        return True

    def save(self, target: Path, *, model: Path) -> None:
        """Replaces an index folder as a whole; call it inside `folder_lock`.

        Args:
            target: the folder.
            model: the packed model that made it, which the folder gets a copy of.
        """
        with replaced_folder(target) as folder:
            shutil.copytree(model, folder / MODEL_FOLDER)
            _write_files(self, folder / FILES_FILE)
            if self.vectors is not None:
                self.vectors.save(folder / VECTORS_FILE)
            text = json.dumps(self.describe(), indent=2, sort_keys=True)
            (folder / FACTS_FILE).write_text(text + "\n", encoding="utf-8")

    def describe(self) -> dict[str, Any]:
        """Returns the facts of index.json."""
        return {
            "format": FORMAT,
            # Escaped, because a path may have bytes that are not UTF-8.
            "root": os.fsencode(self.root).decode("utf-8", "backslashreplace"),
            "root_bytes": os.fsencode(self.root).hex(),
            "origin": self.origin,
            "metric": self.metric,
            "images": len(self),
            "unreadable": len(self.unreadable),
            "kind": self.vectors.kind if self.vectors else "flat",
            "recall": self.vectors.recall if self.vectors else 1.0,
        }

    @classmethod
    def load(cls, folder: Path) -> Self:
        """Reads an index folder.

        Raises:
            ValueError: where it is damaged or of another format.
        """
        facts = read_facts(folder)
        files, stamps, unreadable = _read_files(folder / FILES_FILE)
        vectors = None
        if files:
            vectors = VectorIndex.load(
                folder / VECTORS_FILE,
                metric=facts["metric"],
                kind=facts["kind"],
                recall=facts["recall"],
            )
            if len(vectors) != len(files):
                raise _damaged(folder, f"it has {len(vectors)} vectors of {len(files)} images")
        root = Path(os.fsdecode(bytes.fromhex(facts["root_bytes"])))
        return cls(root, facts["metric"], facts["origin"], files, stamps, unreadable, vectors)


def read_facts(folder: Path) -> dict[str, Any]:
    """Returns the content of index.json; raises ValueError where it is no index of this format."""
    try:
        facts: dict[str, Any] = json.loads((folder / FACTS_FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise _damaged(folder, str(error)) from error
    if facts.get("format") != FORMAT:
        raise _damaged(folder, f"its format is {facts.get('format')!r}, not {FORMAT!r}")
    return facts


def _damaged(folder: Path, reason: str) -> ValueError:
    return ValueError(
        f"the index in {folder} cannot be used: {reason}. Make it anew with: dml index --rebuild"
    )


_COLUMNS = pa.schema(
    [
        # Bytes, because a file's name need not be UTF-8.
        ("path", pa.binary()),
        ("size", pa.int64()),
        ("modified_ns", pa.int64()),
        ("reason", pa.string()),
    ]
)


def _write_files(index: FolderIndex, path: Path) -> None:
    rows = [(name, stamp, "") for name, stamp in zip(index.files, index.stamps, strict=True)]
    rows += [(name, stamp, reason) for name, (stamp, reason) in index.unreadable.items()]
    columns = {
        "path": [os.fsencode(name) for name, _, _ in rows],
        "size": [stamp.size for _, stamp, _ in rows],
        "modified_ns": [stamp.modified_ns for _, stamp, _ in rows],
        "reason": [reason for _, _, reason in rows],
    }
    pq.write_table(pa.table(columns, schema=_COLUMNS), path)


def _read_files(
    path: Path,
) -> tuple[list[str], list[FileStamp], dict[str, tuple[FileStamp, str]]]:
    files: list[str] = []
    stamps: list[FileStamp] = []
    unreadable = {}
    for row in pq.read_table(path).to_pylist():
        name, stamp = os.fsdecode(row["path"]), FileStamp(row["size"], row["modified_ns"])
        if row["reason"]:
            unreadable[name] = (stamp, row["reason"])
        else:
            files.append(name)
            stamps.append(stamp)
    return files, stamps, unreadable
