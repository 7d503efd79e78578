"""A path with images is looked at: its kind, its numbers, and one clear line for each fault."""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from PIL import Image

from dml_core.asking import looking, pictures
from dml_core.asking.looking import FoundData, look_at, safe_name
from dml_core.config.data import DATASET_NAMES, FolderData
from dml_core.data.prepare import prepare_dataset
from dml_core.data.records import DatasetError
from dml_core.data.sources.folder import list_folder


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "project"
    (folder / "data" / "raw").mkdir(parents=True)
    monkeypatch.chdir(folder)
    return folder


def draw(file: Path, number: int, *, gray: bool = False, size: tuple[int, int] = (40, 30)) -> Path:
    """Draws an image that no other number gives."""
    stream = np.random.default_rng(number)
    pixels = stream.integers(0, 255, (size[1], size[0], 3), dtype=np.uint8)
    file.parent.mkdir(parents=True, exist_ok=True)
    image = Image.fromarray(pixels)
    (image.convert("L") if gray else image).save(file)
    return file


def draw_classes(root: Path, *, classes: int = 12, images: int = 3, **knobs: object) -> Path:
    for number in range(classes * images):
        name = f"class{number // images:02d}/photo {number}.png"
        draw(root / name, number, **knobs)
    return root


def look(path: Path | str, project: Path, name: str = "mine") -> FoundData:
    return look_at(str(path), name=name, project=project)


def prepare(found: FoundData, project: Path) -> int:
    """Returns the number of images that the pipeline reads with the found keys."""
    keys = {key.removeprefix("data."): value for key, value in found.data.items()}
    config = FolderData(**keys, image_size_px=16, prepared_root=str(project / "data/prepared"))
    info = prepare_dataset(list_folder(config), config, workers=1)
    return info.num_development_images + info.num_test_images


@pytest.mark.parametrize("place", ["folder", "nested", "zip", "tar"])
def test_class_folders_are_found_and_their_keys_prepare_them(
    tmp_path: Path, project: Path, place: str
):
    tree = draw_classes(tmp_path / "my photos", size=(50, 20))
    draw(tree / "class00" / "2024" / "deep.png", 1000, size=(300, 200))
    path = {"folder": tree, "nested": tmp_path / "around"}.get(place)
    if place == "nested":
        shutil.copytree(tree, tmp_path / "around" / "lone" / "set")
    path = path or Path(
        shutil.make_archive(str(tmp_path / "packed"), place, tree.parent, tree.name)
    )
    found = look(path, project)
    assert found.data == {
        "data.name": "folder",
        "data.alias": "mine",
        "data.raw": str(path),
        "data.on_leak": "drop",
    }
    assert (found.num_classes, found.num_images, found.num_unreadable) == (12, 37, 0)
    assert found.images_per_class == (3, 37 / 12, 4)
    assert found.shorter_px == (20, 20, 200)
    assert found.is_color
    assert found.continuous == ()
    assert "images        37: 3 to 4 a class, mean 3.1" in found.lines
    assert "split         4 to train, 2 to validate, 6 to test (classes)" in found.lines
    assert prepare(found, project) == 37


@pytest.mark.parametrize("split", ["", "train"])
def test_a_stray_image_beside_the_class_folders_is_left_out_named_and_counted(
    tmp_path: Path, project: Path, split: str
):
    draw_classes(tmp_path / "tree" / split)
    if split:
        draw_classes(tmp_path / "tree" / "test")
    draw(tmp_path / "tree" / "montage.png", 99)
    before = sorted(tmp_path.glob("tree/**/*"))
    found = look(tmp_path / "tree", project)
    assert (found.num_classes, found.data["data.raw"]) == (12, "data/raw/mine.tar")
    assert "left out      1 image beside the class folders: montage.png" in found.lines
    assert prepare(found, project) == found.num_images == (72 if split else 36)
    assert sorted(tmp_path.glob("tree/**/*")) == before
    # Nothing is written twice.
    assert look(tmp_path / "tree", project) == found


def test_a_stray_image_does_not_hide_nested_class_folders(tmp_path: Path, project: Path):
    for group in ("birds", "cats"):
        draw_classes(tmp_path / "tree" / group, classes=6)
    draw(tmp_path / "tree" / "cover.png", 99)
    found = look(tmp_path / "tree", project)
    assert (found.num_classes, found.data["data.class_levels"]) == (12, 2)


def test_gray_images_are_not_in_colour_and_a_tenth_in_colour_is(tmp_path: Path, project: Path):
    tree = draw_classes(tmp_path / "gray", gray=True)
    draw(tree / "class00" / "one.png", 100)
    assert not look(tree, project).is_color
    for number in range(5):
        draw(tree / "class00" / f"other {number}.png", 200 + number)
    assert look(tree, project).is_color


def test_images_that_cannot_be_read_are_counted_with_the_remedy(tmp_path: Path, project: Path):
    tree = draw_classes(tmp_path / "tree")
    heic = b"\0\0\0\x18ftypheic\0\0\0\0mif1heic"
    (tree / "class00" / "a.heic").write_bytes(heic)
    (tree / "class00" / "b.HEIC").write_bytes(heic)
    draw(tree / "class01" / "c.avif", 300)
    (tree / "class01" / "phone.jpg").write_bytes(heic)
    (tree / "class02" / "empty.jpg").touch()
    # A wrong suffix does not matter.
    shutil.copy(draw(tmp_path / "other.png", 301), tree / "class02" / "really a png.jpg")
    found = look(tree, project)
    assert (found.num_unreadable, found.num_images) == (5, 37)
    unlisted, refused = (line for line in found.lines if line.startswith("cannot read"))
    assert "2 .heic, 1 .avif left out" in unlisted
    assert "magick mogrify -format jpg *.heic" in unlisted
    assert "2 of 39 left out" in refused
    assert "class01/phone.jpg is HEIC" in refused
    assert "class02/empty.jpg is empty" in refused
    assert prepare(found, project) == 37


def test_a_link_out_of_the_folder_is_not_read_and_a_pipe_does_not_block(
    tmp_path: Path, project: Path
):
    tree = draw_classes(tmp_path / "tree", images=10)
    (tree / "class00" / "out.png").symlink_to(draw(tmp_path / "secret.png", 400))
    os.mkfifo(tree / "class00" / "pipe.png")
    found = look(tree, project)
    assert found.num_unreadable == 2
    (line,) = (line for line in found.lines if line.startswith("cannot read"))
    assert "out.png leaves the dataset's folder through a link" in line
    assert "pipe.png is a pipe" in line


def test_copies_across_the_split_are_dropped_and_named(tmp_path: Path, project: Path):
    tree = draw_classes(tmp_path / "tree")
    shutil.copy(tree / "class00" / "photo 0.png", tree / "class11" / "copy.png")
    shutil.copy(tree / "class01" / "photo 3.png", tree / "class01" / "copy.png")
    draw(tree / "Class 01" / "a.png", 500)
    draw(tree / "Class 01" / "b.png", 501)
    found = look(tree, project)
    assert found.data["data.on_leak"] == "drop"
    copies = [line for line in found.lines if line.startswith("copies")]
    assert "1 image equal to one of another split, dropped" in copies[0]
    assert "1 image equal to another of the same class" in copies[1]
    assert any("near-duplicates" in line for line in copies)
    assert prepare(found, project) == 39


def test_with_many_images_only_a_sample_is_opened(
    tmp_path: Path, project: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(pictures, "MAX_CHECKED", 30)
    found = look(draw_classes(tmp_path / "tree"), project)
    assert any("not searched here with over" in line for line in found.lines)
    assert found.num_images == 36


def test_classes_with_one_image_are_counted(tmp_path: Path, project: Path):
    tree = draw_classes(tmp_path / "tree")
    draw(tree / "lone" / "a.png", 600)
    found = look(tree, project)
    assert found.images_per_class[0] == 1
    assert any("1 class has one image: no positive pairs" in line for line in found.lines)


@pytest.mark.parametrize("classes", range(6, 12))
def test_few_classes_still_leave_two_on_each_side(tmp_path: Path, project: Path, classes: int):
    found = look(draw_classes(tmp_path / "tree", classes=classes, images=2), project)
    assert found.data["data.test_fraction"] == 0.33
    (line,) = (line for line in found.lines if line.startswith("split"))
    sides = [int(word) for word in line.split() if word.isdigit()]
    assert min(sides) >= 2
    assert sum(sides) == classes
    assert prepare(found, project) == 2 * classes


def test_train_and_test_folders_are_put_together(tmp_path: Path, project: Path):
    tree = draw_classes(tmp_path / "tree" / "train", images=2)
    for number in range(12):
        draw(tmp_path / "tree" / "test" / f"class{number:02d}" / "photo 0.png", 700 + number)
    (tree / "class00" / "phone.heic").touch()
    found = look(tree.parent, project)
    assert found.data["data.raw"] == "data/raw/mine.tar"
    assert (found.num_classes, found.num_images, found.num_unreadable) == (12, 36, 1)
    assert "the classes of test, train put together" in found.lines[0]
    assert any("1 .heic left out" in line for line in found.lines)


@pytest.mark.parametrize(
    ("groups", "levels", "number", "line"),
    [
        (["birds", "cats"], 2, 8, "8 folders of level 2, such as birds/0; level 1 has only 2"),
        ([f"brand {n}" for n in range(6)], 1, 6, "6 folders of level 1, such as brand 0; the 24 "
         "folders below them are classes with --set data.class_levels=2"),
    ],
)  # fmt: skip
def test_nested_class_folders_are_taken_at_the_level_with_enough_classes(
    tmp_path: Path, project: Path, groups: list[str], levels: int, number: int, line: str
):
    for place, group in enumerate(groups):
        for kind in range(4):
            for photo in range(2):
                shade = 100 * place + 10 * kind + photo
                draw(tmp_path / "set" / group / str(kind) / f"{photo}.png", shade)
    found = look(tmp_path / "set", project)
    assert f"class folders {line}" in found.lines
    assert found.data.get("data.class_levels", 1) == levels
    assert found.num_classes == number
    assert prepare(found, project) == 8 * len(groups)


def test_a_level_or_a_number_of_images_that_a_person_sets_is_taken(tmp_path: Path, project: Path):
    for group in range(6):
        for kind in range(2):
            for photo in range(3):
                path = tmp_path / "set" / str(group) / str(kind) / f"{photo}.png"
                draw(path, 100 * group + 10 * kind + photo)
    chosen = {"data.class_levels": 2, "data.max_images_per_class": 2}
    found = look_at(str(tmp_path / "set"), name="mine", project=project, chosen=chosen)
    assert (found.num_classes, found.num_images) == (12, 24)
    assert prepare(found, project) == 24


# Tables.


def write_table(folder: Path, name: str = "labels.csv", **columns: object) -> Path:
    """Draws 36 images in 12 classes in photos/, and writes a table beside the folder."""
    paths = []
    for number in range(36):
        paths.append(f"photos/{number}.png")
        draw(folder / paths[-1], number)
    frame = pd.DataFrame({"image": paths, **columns})
    file = folder / name
    frame.to_csv(file, index=False) if name.endswith("csv") else frame.to_parquet(file)
    return file


SPECIES = [f"species {number // 3}" for number in range(36)]


@pytest.mark.parametrize("name", ["labels.csv", "labels.parquet"])
@pytest.mark.parametrize("given", ["table", "folder", "zip"])
def test_the_columns_of_a_table_are_guessed_and_shown(
    tmp_path: Path, project: Path, name: str, given: str
):
    split = ["train" if number < 24 else "test" for number in range(36)]
    table = write_table(
        tmp_path / "set", name, row=range(36), weight=np.linspace(0, 1, 36), species=SPECIES,
        split=split,
    )  # fmt: skip
    path = {"table": table, "folder": table.parent}.get(given)
    path = path or Path(shutil.make_archive(str(tmp_path / "packed"), "zip", table.parent))
    found = look(path, project)
    raw = path if given == "zip" else table.parent
    assert found.data == {
        "data.name": "folder",
        "data.alias": "mine",
        "data.raw": str(raw),
        "data.table": name,
        "data.path_column": "image",
        "data.class_column": "species",
        "data.split_column": "split",
        "data.on_leak": "drop",
    }
    assert "columns       path 'image', class 'species', split 'split' (guessed)" in found.lines
    assert (found.num_classes, found.num_images, found.continuous) == (12, 36, ())
    assert prepare(found, project) == 36


@pytest.mark.parametrize(
    ("columns", "chosen"),
    [
        ({"product_id": [n // 3 + 500 for n in range(36)], "color": ["a", "b"] * 18}, "product_id"),
        ({"shop": ["a", "b"] * 18, "kind": SPECIES}, "kind"),
        ({"id": range(36), "ClassName": SPECIES}, "ClassName"),
        ({"group": [n // 3 for n in range(36)]}, "group"),
    ],
)  # fmt: skip
def test_the_class_column_is_found_by_name_and_by_content(
    tmp_path: Path, project: Path, columns: dict, chosen: str
):
    found = look(write_table(tmp_path, **columns), project)
    assert found.data["data.class_column"] == chosen
    assert found.num_classes == 12


def test_numbers_without_a_class_column_are_continuous_labels(tmp_path: Path, project: Path):
    table = write_table(
        tmp_path / "set", id=range(36), age=range(20, 92, 2), pose=np.linspace(-1, 1, 36)
    )
    found = look(table, project)
    assert found.continuous == ("age", "pose")
    assert found.data["data.class_column"] == ""
    assert found.data["data.continuous_labels"] == ["age", "pose"]
    assert "images        36 with numbers: age, pose" in found.lines
    assert prepare(found, project) == 36


@pytest.mark.parametrize(
    ("split", "reason"),
    [
        (["train", "val", "test"] * 12, "it has val: validation classes are taken from train"),
        (["train", "train", "test"] * 12, "must be in train or in test"),
    ],
)
def test_a_split_column_that_cannot_be_used_is_named(
    tmp_path: Path, project: Path, split: list[str], reason: str
):
    found = look(write_table(tmp_path, label=SPECIES, split=split), project)
    assert "data.split_column" not in found.data
    (line,) = (line for line in found.lines if "is not used" in line)
    assert reason in line


def test_a_table_beside_class_folders_is_named_and_not_used(tmp_path: Path, project: Path):
    tree = draw_classes(tmp_path / "tree")
    (tree / "notes.csv").write_text("path,class\nx,y\n")
    found = look(tree, project)
    assert "data.table" not in found.data
    assert any("notes.csv beside the class folders is not used" in line for line in found.lines)


# Bad input: one line each, and nothing is left.


def _missing(folder: Path) -> Path:
    (folder / "photos").mkdir()
    return folder / "photo"


def _text_file(folder: Path) -> Path:
    (folder / "notes.txt").write_text("hello")
    return folder / "notes.txt"


def _no_images(folder: Path) -> Path:
    (folder / "set" / "cat").mkdir(parents=True)
    (folder / "set" / "cat" / "notes.txt").touch()
    return folder / "set"


def _only_heic(folder: Path) -> Path:
    (folder / "set" / "cat").mkdir(parents=True)
    (folder / "set" / "cat" / "a.heic").touch()
    return folder / "set"


def _no_classes(folder: Path) -> Path:
    return draw(folder / "set" / "a.png", 1).parent


def _many_stray(folder: Path) -> Path:
    tree = draw_classes(folder / "set", classes=6, images=2)
    _draw_loose(tree)
    return tree


def _many_stray_of_a_split(folder: Path) -> Path:
    draw_classes(folder / "set" / "test", classes=6, images=2)
    tree = draw_classes(folder / "set" / "train", classes=6, images=2)
    _draw_loose(tree)
    return folder / "set"


def _draw_loose(tree: Path) -> None:
    for number in range(4):
        draw(tree / f"loose {number}.png", 90 + number)


def _one_class_archive(folder: Path) -> Path:
    draw_classes(folder / "set", classes=1)
    return Path(shutil.make_archive(str(folder / "one"), "zip", folder / "set"))


def _damaged_archive(folder: Path) -> Path:
    archive = _one_class_archive(folder)
    archive.write_bytes(archive.read_bytes()[:200])
    return archive


def _mostly_damaged(folder: Path) -> Path:
    tree = draw_classes(folder / "set", images=2)
    for file in sorted(tree.rglob("*.png"))[:20]:
        file.write_bytes(b"no image at all")
    return tree


def _link_loop(folder: Path) -> Path:
    (folder / "loop").symlink_to("loop")
    return folder / "loop"


def _link_loop_inside(folder: Path) -> Path:
    tree = draw_classes(folder / "set")
    (tree / "loop").symlink_to("loop")
    return tree


def _link_to_parent(folder: Path) -> Path:
    (folder / "set").mkdir()
    (folder / "set" / "up").symlink_to(".")
    return folder / "set"


def _foreign_paths(folder: Path) -> Path:
    (folder / "t.csv").write_text("path,class\n/home/ann/1.jpg,cat\n/home/ann/2.jpg,dog\n")
    return folder / "t.csv"


def _some_missing(folder: Path) -> Path:
    table = write_table(folder, label=SPECIES)
    (folder / "photos" / "7.png").unlink()
    return table


def _unclear_table(folder: Path) -> Path:
    return write_table(folder, remark=[f"seen on day {number}" for number in range(36)])


def _many_classes_of_few_images(folder: Path) -> Path:
    draw(folder / "0.png", 0)
    rows = [f"0.png,person {number}" for number in range(100_000)]
    (folder / "t.csv").write_text("\n".join(["path,class", *rows]))
    return folder / "t.csv"


def _lone_images(folder: Path) -> Path:
    return draw_classes(folder / "set", images=1)


BAD = {
    "missing": (_missing, r"there is no file or folder .*photo\. Did you mean 'photos'\?"),
    "text file": (_text_file, r"must be a folder .* Found a file 'notes.txt'. Save it as CSV"),
    "one image": (lambda f: draw(f / "a.png", 1), r"That is one image; give the folder"),
    "no images": (_no_images, r"set must hold images in one folder per class. Found no image"),
    "only heic": (_only_heic, r"Found only 1 \.heic: convert them to JPEG.*magick mogrify"),
    "no classes": (_no_classes, r"Found 1 images without class folders and no tables\. Move"),
    "many stray": (
        _many_stray,
        r"one folder per class. Found 4 images beside 6 folders with 12, such as loose 0\.png",
    ),
    "many stray of a split": (_many_stray_of_a_split, r"train must .* Found loose 0\.png without"),
    "one class": (lambda f: draw_classes(f / "set", classes=1), r"Found one class, 'class00'"),
    "one class packed": (_one_class_archive, r"one\.zip must .* Found one class, 'class00'"),
    "five classes": (
        lambda f: draw_classes(f / "set", classes=5),
        r"at least 6 classes are needed: 2 each .* Found 5: class00, class01",
    ),
    "one image a class": (_lone_images, r"Found one image in each of 12 classes"),
    "damaged archive": (_damaged_archive, r"one\.zip is damaged or truncated"),
    "mostly damaged": (_mostly_damaged, r"Found 20 of 24 that are not: class00/photo 0\.png is"),
    "link loop": (_link_loop, r"loop must lead to .* a link that leads back to itself"),
    "link loop inside": (_link_loop_inside, r"set/loop is a link that leads back to itself"),
    "link to parent": (_link_to_parent, r"set/up is a link to a folder. Links are not followed"),
    "foreign paths": (
        _foreign_paths,
        r"column 'path' .* None of the 2 exists there; the first is '/home/ann/1.jpg'",
    ),
    "some missing": (_some_missing, r"row 9, column 'image': there is no file 'photos/7.png'"),
    "100,000 classes of one image": (
        _many_classes_of_few_images,
        r"99,999 problem\(s\): row 3, column 'path': '0\.png' is also in row 2\. The others",
    ),
    "unclear table": (_unclear_table, r"must have a column with classes.* 'remark'"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_gives_one_line_and_leaves_nothing(tmp_path: Path, project: Path, case: str):
    make, message = BAD[case]
    (tmp_path / "given").mkdir()
    path = make(tmp_path / "given")
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(DatasetError, match=message) as caught:
        look(path, project)
    assert "\n" not in str(caught.value)
    assert sorted(tmp_path.rglob("*")) == before


def test_the_project_itself_is_refused(project: Path):
    with pytest.raises(DatasetError, match="holds this project itself"):
        look(project.parent, project)


@contextmanager
def plain_user() -> Iterator[None]:
    """Gives up the rights of root, who may read everything."""
    is_root = os.geteuid() == 0
    if is_root:
        os.seteuid(65534)
    try:
        yield
    finally:
        if is_root:
            os.seteuid(0)


def test_files_and_folders_without_permission_are_named(project: Path):
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        Path(folder).chmod(0o755)
        tree = draw_classes(Path(folder) / "tree", images=6)
        # Everything that is imported late is imported now, as the user that may read it.
        look(tree, project)
        (tree / "class03" / "photo 18.png").chmod(0)
        with plain_user():
            found = look(tree, project)
        assert (found.num_unreadable, found.num_images) == (1, 71)
        assert any("photo 18.png may not be read: permission" in line for line in found.lines)
        (tree / "class03").chmod(0)
        try:
            with (
                plain_user(),
                pytest.raises(DatasetError, match="class03 cannot be read: Permission denied"),
            ):
                look(tree, project)
        finally:
            (tree / "class03").chmod(0o755)


def test_long_work_reports_its_progress(
    tmp_path: Path, project: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(pictures, "_PROGRESS_SECONDS", 0.0)
    told: list[str] = []
    tree = draw_classes(tmp_path / "tree")
    archive = shutil.make_archive(str(tmp_path / "packed"), "zip", tree)
    look_at(archive, name="mine", project=project, on_progress=told.append)
    assert told[0] == f"unpacking {archive}"
    assert told[-1] == "opening images: 36 of 36"
    assert any(line.startswith("listing files of") for line in told)


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ('/home/me/My "best" photo\'s.tar.gz', "My-best-photo-s"),
        ("hf:owner/flowers 102", "owner-flowers-102"),
        ("/data/Übergröße", "Ubergroe"),
        ("/data/日本", "images"),
        ("/data/..-.csv", "images"),
        ("/data/sop", "my-sop"),
        ("/data/CUB200.zip", "my-CUB200"),
        ("/data/" + "x" * 200, "x" * 60),
    ],
)
def test_a_name_is_made_safe(text: str, name: str):
    assert safe_name(text) == name
    assert FolderData(alias=safe_name(text)).folder_name not in DATASET_NAMES


def test_looking_imports_nothing_heavy():
    code = (
        "import sys, dml_core.asking.looking; "
        "print([m for m in ('torch', 'pandas', 'pyarrow', 'datasets') if m in sys.modules])"
    )
    found = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True,
        cwd=Path(looking.__file__).parents[2],
    )  # fmt: skip
    assert found.stdout.strip() == "[]"
