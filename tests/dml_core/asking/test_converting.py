"""Shards and saved datasets become one archive of class folders, which the pipeline reads."""

import io
import json
import sys
import tarfile
import types
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from dml_core.asking.converting import ClassFolders, is_shard, make_folder_name
from dml_core.asking.looking import FoundData, look_at
from dml_core.data.records import DatasetError

NAMES = [f"species {number}" for number in range(12)]


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "project"
    (folder / "data" / "raw").mkdir(parents=True)
    monkeypatch.chdir(folder)
    return folder


def encode(number: int, kind: str = "PNG") -> bytes:
    pixels = np.random.default_rng(number).integers(0, 255, (24, 32, 3), dtype=np.uint8)
    stream = io.BytesIO()
    Image.fromarray(pixels).save(stream, kind)
    return stream.getvalue()


def write_tar(file: Path, members: list[tuple[str, bytes]], mode: str = "w") -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(file, mode) as tar:
        for name, content in members:
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return file


def make_samples(style: str) -> list[tuple[str, bytes]]:
    """Returns the members of 36 samples of 12 classes."""
    members = []
    for number in range(36):
        name = NAMES[number // 3]
        label = (
            ("cls", name.encode())
            if style == "cls"
            else ("json", json.dumps({"label": number // 3, "width": 32}).encode())
        )
        members += [(f"set/{number:04d}.{label[0]}", label[1])]
        members += [(f"set/{number:04d}.jpg", encode(number, "JPEG"))]
    return members


def make_table(numbers: range, *, names: list[str] | None = NAMES) -> pa.Table:
    """Returns images and classes as `datasets` stores them."""
    image = {"_type": "Image"}
    label = {"names": names, "_type": "ClassLabel"} if names else {"_type": "Value"}
    metadata = json.dumps({"info": {"features": {"image": image, "label": label}}})
    table = pa.table(
        {
            "image": pa.array(
                [{"bytes": encode(number), "path": None} for number in numbers],
                pa.struct({"bytes": pa.binary(), "path": pa.string()}),
            ),
            "label": pa.array([number // 3 for number in numbers], pa.int64()),
        }
    )
    return table.replace_schema_metadata({"huggingface": metadata})


def save_to_disk(folder: Path, table: pa.Table) -> Path:
    """Writes a table as `Dataset.save_to_disk` does."""
    folder.mkdir(parents=True)
    name = "data-00000-of-00001.arrow"
    with pa.OSFile(str(folder / name), "wb") as sink, pa.ipc.new_stream(sink, table.schema) as out:
        out.write_table(table)
    (folder / "state.json").write_text(json.dumps({"_data_files": [{"filename": name}]}))
    (folder / "dataset_info.json").write_text("{}")
    return folder


def look(path: Path | str, project: Path) -> FoundData:
    return look_at(str(path), name="mine", project=project)


def list_members(project: Path) -> list[str]:
    with tarfile.open(project / "data/raw/mine.tar") as tar:
        return tar.getnames()


def _one_shard(folder: Path) -> Path:
    return write_tar(folder / "shard.tar", make_samples("cls"))


def _shards(folder: Path) -> Path:
    members = make_samples("json")
    write_tar(folder / "shards" / "set-0001.tar", members[36:])
    write_tar(folder / "shards" / "set-0000.tar.gz", members[:36], "w:gz")
    return folder / "shards"


def _saved(folder: Path) -> Path:
    return save_to_disk(folder / "saved", make_table(range(36)))


def _saved_splits(folder: Path) -> Path:
    save_to_disk(folder / "saved" / "train", make_table(range(20)))
    save_to_disk(folder / "saved" / "test", make_table(range(20, 36)))
    (folder / "saved" / "dataset_dict.json").write_text('{"splits": ["train", "test"]}')
    return folder / "saved"


def _parquet(folder: Path) -> Path:
    (folder / "hub" / "data").mkdir(parents=True)
    pq.write_table(make_table(range(20)), folder / "hub" / "data" / "train-0.parquet")
    pq.write_table(make_table(range(20, 36)), folder / "hub" / "data" / "test-0.parquet")
    return folder / "hub"


@pytest.mark.parametrize("make", [_one_shard, _shards, _saved, _saved_splits, _parquet])
def test_shards_and_saved_datasets_become_one_archive_that_is_reused(
    tmp_path: Path, project: Path, make
):
    path = make(tmp_path / "given")
    found = look(path, project)
    assert found.data == {
        "data.name": "folder",
        "data.alias": "mine",
        "data.raw": "data/raw/mine.tar",
        "data.on_leak": "drop",
    }
    assert (found.num_classes, found.num_images, found.num_unreadable) == (12, 36, 0)
    assert found.images_per_class == (3, 3.0, 3)
    assert found.lines[0].startswith("converted")
    archive = project / "data/raw/mine.tar"
    first, content = archive.stat(), archive.read_bytes()
    assert look(path, project) == found
    assert archive.stat().st_mtime_ns == first.st_mtime_ns
    assert sorted(p.name for p in archive.parent.iterdir()) == ["mine.tar", "mine.unpacked"]
    # Another conversion gives the same bytes.
    archive.unlink()
    assert look(path, project) == found
    assert archive.read_bytes() == content


def test_classes_of_a_saved_dataset_have_their_names(tmp_path: Path, project: Path):
    look(_saved(tmp_path / "given"), project)
    members = list_members(project)
    assert members[0] == "species 0/0000000.png"
    assert {member.split("/")[0] for member in members} == set(NAMES)


def test_samples_without_class_or_image_are_counted(tmp_path: Path, project: Path):
    table = make_table(range(36))
    extra = pa.Table.from_pylist(
        [
            {"image": {"bytes": encode(90), "path": None}, "label": -1},
            {"image": {"bytes": encode(91), "path": None}, "label": None},
            {"image": {"bytes": None, "path": "gone.png"}, "label": 1},
        ],
        schema=table.schema,
    )
    found = look(save_to_disk(tmp_path / "saved", pa.concat_tables([table, extra])), project)
    assert found.num_images == 36
    assert "left out      2 samples without a class" in found.lines
    assert "left out      1 samples without an image" in found.lines


def test_an_archive_of_class_folders_is_no_shard(tmp_path: Path):
    members = [(f"cat/{number}.jpg", encode(number, "JPEG")) for number in range(3)]
    assert not is_shard(write_tar(tmp_path / "tree.tar", members))
    notes = [*members, ("cat/0.json", b'{"width": 3}')]
    assert not is_shard(write_tar(tmp_path / "noted.tar", notes))
    assert is_shard(write_tar(tmp_path / "shard.tar", make_samples("json")))


@pytest.mark.parametrize(
    ("label", "name"),
    [
        ("plain name", "plain name"),
        ("a/b\\c", "a_b_c"),
        ("../../etc", "_.._.._etc"),
        (".hidden", "_.hidden"),
        ("__MACOSX", "___MACOSX"),
        ("..", "_"),
        ("x" * 300, "x" * 150),
        ("日" * 100, "日" * 50),
    ],
)
def test_a_label_becomes_one_visible_folder(label: str, name: str):
    assert make_folder_name(label) == name


def test_labels_with_the_same_folder_name_stay_apart():
    folders = ClassFolders()
    assert [folders.folder_of(label) for label in ("a/b", "a_b", "A_b", "a/b")] == [
        "a_b",
        "a_b-2",
        "A_b-3",
        "a_b",
    ]


def _without_labels(folder: Path) -> Path:
    table = make_table(range(3)).rename_columns(["image", "width"])
    return save_to_disk(folder / "saved", table.replace_schema_metadata(None))


def _without_images(folder: Path) -> Path:
    return save_to_disk(folder / "saved", pa.table({"text": ["a"], "label": [1]}))


def _damaged(folder: Path) -> Path:
    saved = _saved(folder)
    file = next(saved.glob("*.arrow"))
    file.write_bytes(file.read_bytes()[:2000])
    return saved


def _leaving(folder: Path) -> Path:
    saved = _saved(folder)
    (saved / "state.json").write_text('{"_data_files": [{"filename": "../other.arrow"}]}')
    return saved


def _cut_shard(folder: Path) -> Path:
    shard = _one_shard(folder)
    shard.write_bytes(shard.read_bytes()[:20_000])
    return shard


def _two_classes(folder: Path) -> Path:
    return save_to_disk(folder / "saved", make_table(range(6)))


BAD = {
    "no labels": (_without_labels, "must have a column of classes.* Found image, width"),
    "no images": (_without_images, "must have a column of images. Found text, label"),
    "damaged": (_damaged, r"data-00000-of-00001.arrow is damaged"),
    "leaving": (_leaving, r"must name files inside it. Found '../other.arrow'"),
    "cut shard": (_cut_shard, r"shard.tar is damaged or truncated"),
    "two classes": (_two_classes, "at least 6 classes are needed.* Found 2: species 0, species 1"),
    "malformed address": (lambda folder: "hf:a/b/c", "is hf:owner/name. Got 'hf:a/b/c'"),
}


@pytest.mark.parametrize("case", BAD)
def test_a_bad_source_gives_one_line_and_leaves_nothing(tmp_path: Path, project: Path, case: str):
    make, message = BAD[case]
    path = make(tmp_path / "given")
    with pytest.raises(DatasetError, match=message) as caught:
        look(path, project)
    assert "\n" not in str(caught.value)
    assert [p for p in project.rglob("*") if p.is_file()] == []


def test_another_archive_with_the_name_is_not_replaced(tmp_path: Path, project: Path):
    (project / "data/raw/mine.tar").write_bytes(b"precious")
    with pytest.raises(DatasetError, match=r"mine.tar must be free .* Choose another name"):
        look(_saved(tmp_path / "given"), project)
    assert (project / "data/raw/mine.tar").read_bytes() == b"precious"


def test_a_hub_address_without_the_package_names_what_to_install(
    project: Path, monkeypatch: pytest.MonkeyPatch
):
    # None makes an import fail as if the package were not there.
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(DatasetError, match=r"pip install datasets.*save_to_disk\('FOLDER'\)"):
        look("hf:owner/flowers", project)
    assert [*(project / "data/raw").iterdir()] == []


class _Loaded:
    def save_to_disk(self, folder: str) -> None:
        save_to_disk(Path(folder), make_table(range(36)))


def _fake_package(monkeypatch: pytest.MonkeyPatch, load) -> None:
    package = types.ModuleType("datasets")
    package.load_dataset = load
    monkeypatch.setitem(sys.modules, "datasets", package)


def test_a_hub_out_of_reach_is_one_line(project: Path, monkeypatch: pytest.MonkeyPatch):
    def load(name: str) -> None:
        raise ConnectionError(f"Couldn't reach '{name}' on the Hub\nmore lines")

    _fake_package(monkeypatch, load)
    with pytest.raises(
        DatasetError, match=r"hf:owner/flowers cannot be loaded .*Couldn't reach 'owner/flowers'"
    ) as caught:
        look("hf:owner/flowers", project)
    assert "\n" not in str(caught.value)
    assert [*(project / "data/raw").iterdir()] == []


def test_a_dataset_of_the_hub_is_converted(project: Path, monkeypatch: pytest.MonkeyPatch):
    _fake_package(monkeypatch, lambda name: _Loaded())
    found = look("hf:owner/flowers", project)
    assert (found.num_classes, found.num_images) == (12, 36)
    assert "hf:owner/flowers" in found.lines[0]
    assert sorted(p.name for p in (project / "data/raw").iterdir()) == ["mine.tar", "mine.unpacked"]
