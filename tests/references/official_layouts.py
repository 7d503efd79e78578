"""Writes tiny copies of published datasets, true to the layouts of the official downloads.

Each function fills a folder as the unpacked download would, and returns the counts that a source
must find there. Classes come first to last: the training classes, then the test classes.
"""

import gzip
import struct
from pathlib import Path

import numpy as np
import scipy.io
from PIL import Image

from dml_core.data.sources.official import OfficialCounts


def write_image(file: Path, *, seed: int = 0, size_px: tuple[int, int] = (12, 9)) -> None:
    """Writes an image of random colours; its suffix says the format."""
    file.parent.mkdir(parents=True, exist_ok=True)
    width, height = size_px
    pixels = np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(file)


def even_counts(train_classes: int, test_classes: int, images_per_class: int) -> OfficialCounts:
    """Returns the counts of a dataset whose classes all have equally many images."""
    return OfficialCounts(
        train_classes=train_classes,
        train_images=train_classes * images_per_class,
        test_classes=test_classes,
        test_images=test_classes * images_per_class,
    )


def write_cub200(
    folder: Path, *, train_classes: int = 2, test_classes: int = 2, images_per_class: int = 3
) -> OfficialCounts:
    """Writes CUB_200_2011 below the folder."""
    base = folder / "CUB_200_2011"
    images, labels, classes = [], [], []
    for class_id in range(1, train_classes + test_classes + 1):
        class_name = f"{class_id:03d}.Bird_{class_id}"
        classes.append(f"{class_id} {class_name}")
        for _ in range(images_per_class):
            image_id = len(images) + 1
            path = f"{class_name}/Bird_{class_id}_{image_id:04d}.jpg"
            write_image(base / "images" / path, seed=image_id)
            images.append(f"{image_id} {path}")
            labels.append(f"{image_id} {class_id}")
    _write_lines(base / "images.txt", images)
    _write_lines(base / "image_class_labels.txt", labels)
    _write_lines(base / "classes.txt", classes)
    return even_counts(train_classes, test_classes, images_per_class)


def write_cars196(
    folder: Path, *, train_classes: int = 2, test_classes: int = 2, images_per_class: int = 3
) -> OfficialCounts:
    """Writes car_ims and cars_annos.mat in the folder."""
    num_classes = train_classes + test_classes
    annotations = []
    for class_id in range(1, num_classes + 1):
        for index in range(images_per_class):
            path = f"car_ims/{len(annotations) + 1:06d}.jpg"
            write_image(folder / path, seed=len(annotations))
            annotations.append(
                {"relative_im_path": path, **_box(), "class": class_id, "test": index % 2}
            )
    names = _cell_array([f"Maker Model/{n} 2012" for n in range(1, num_classes + 1)])
    content = {"annotations": _struct_array(annotations), "class_names": names}
    scipy.io.savemat(folder / "cars_annos.mat", content)
    return even_counts(train_classes, test_classes, images_per_class)


def write_cars196_two_folders(
    folder: Path, *, train_classes: int = 2, test_classes: int = 2, images_per_class: int = 4
) -> OfficialCounts:
    """Writes cars_train, cars_test and devkit in the folder; half of each class in each."""
    num_classes = train_classes + test_classes
    for part, list_name in (
        ("cars_train", "devkit/cars_train_annos.mat"),
        ("cars_test", "cars_test_annos_withlabels.mat"),
    ):
        annotations = []
        for class_id in range(1, num_classes + 1):
            for _ in range(images_per_class // 2):
                name = f"{len(annotations) + 1:05d}.jpg"
                write_image(folder / part / name, seed=len(annotations))
                annotations.append({**_box(), "class": class_id, "fname": name})
        (folder / "devkit").mkdir(exist_ok=True)
        scipy.io.savemat(folder / list_name, {"annotations": _struct_array(annotations)})
    names = _cell_array([f"Maker Model/{n} 2012" for n in range(1, num_classes + 1)])
    scipy.io.savemat(folder / "devkit" / "cars_meta.mat", {"class_names": names})
    return even_counts(train_classes, test_classes, images_per_class // 2 * 2)


def write_sop(
    folder: Path, *, train_classes: int = 3, test_classes: int = 2, images_per_class: int = 2
) -> OfficialCounts:
    """Writes Stanford_Online_Products below the folder."""
    base = folder / "Stanford_Online_Products"
    header = "image_id class_id super_class_id path"
    lines: dict[str, list[str]] = {"train": [header], "test": [header]}
    for class_id in range(1, train_classes + test_classes + 1):
        part = "train" if class_id <= train_classes else "test"
        for index in range(images_per_class):
            path = f"bicycle_final/{100_000 + class_id}_{index}.JPG"
            write_image(base / path, seed=class_id * 100 + index)
            image_id = (class_id - 1) * images_per_class + index + 1
            lines[part].append(f"{image_id} {class_id} 1 {path}")
    _write_lines(base / "Ebay_train.txt", lines["train"])
    _write_lines(base / "Ebay_test.txt", lines["test"])
    return even_counts(train_classes, test_classes, images_per_class)


def write_inshop(
    folder: Path,
    *,
    train_classes: int = 3,
    test_classes: int = 2,
    images_per_class: int = 3,
    image_folder: str = "img",
) -> OfficialCounts:
    """Writes the benchmark's Img and Eval; one image of each test item is the query."""
    base = folder / "In-shop Clothes Retrieval Benchmark"
    rows = []
    for item in range(1, train_classes + test_classes + 1):
        part = ("WOMEN/Dresses", "MEN/Denim")[item % 2]
        for index in range(images_per_class):
            path = f"{part}/id_{item:08d}/{index + 1:02d}_1_front.jpg"
            write_image(base / "Img" / image_folder / path, seed=item * 100 + index)
            status = "train" if item <= train_classes else ("gallery" if index else "query")
            rows.append(f"img/{path:70s} id_{item:08d} {status}")
    header = [str(len(rows)), "image_name item_id evaluation_status"]
    _write_lines(base / "Eval" / "list_eval_partition.txt", header + rows)
    return OfficialCounts(
        train_classes=train_classes,
        train_images=train_classes * images_per_class,
        test_classes=test_classes,
        test_images=test_classes * images_per_class,
        query_images=test_classes,
        gallery_images=test_classes * (images_per_class - 1),
    )


def write_omniglot(
    folder: Path, *, train_classes: int = 3, test_classes: int = 2, images_per_class: int = 2
) -> OfficialCounts:
    """Writes images_background and images_evaluation in the folder, as 1-bit PNGs."""
    for part, alphabet, num_classes in (
        ("images_background", "Greek", train_classes),
        ("images_evaluation", "Tengwar", test_classes),
    ):
        for character in range(1, num_classes + 1):
            for index in range(1, images_per_class + 1):
                name = f"{character:04d}_{index:02d}.png"
                file = folder / part / alphabet / f"character{character:02d}" / name
                file.parent.mkdir(parents=True, exist_ok=True)
                drawing = np.random.default_rng(index).random((10, 10)) > 0.1
                Image.fromarray(drawing).save(file)
    return even_counts(train_classes, test_classes, images_per_class)


def write_fashion_mnist(
    folder: Path, *, train_images: int = 20, test_images: int = 10, gzipped: bool = True
) -> dict[str, int]:
    """Writes the four idx files in the folder; labels go round the ten classes."""
    folder.mkdir(parents=True, exist_ok=True)
    counts = {"train": train_images, "t10k": test_images}
    for part, count in counts.items():
        images = np.random.default_rng(count).integers(0, 256, (count, 28, 28), dtype=np.uint8)
        labels = (np.arange(count) % 10).astype(np.uint8)
        for kind, array in (("images-idx3", images), ("labels-idx1", labels)):
            name, content = f"{part}-{kind}-ubyte", idx_bytes(array)
            if gzipped:
                (folder / f"{name}.gz").write_bytes(gzip.compress(content))
            else:
                (folder / name).write_bytes(content)
    return counts


def idx_bytes(array: np.ndarray) -> bytes:
    """Returns a uint8 array in the idx format."""
    header = struct.pack(f">BBBB{array.ndim}I", 0, 0, 8, array.ndim, *array.shape)
    return header + array.tobytes()


def _write_lines(file: Path, lines: list[str]) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("\n".join(lines) + "\n", encoding="utf-8")


def _box() -> dict[str, int]:
    return {"bbox_x1": 1, "bbox_y1": 1, "bbox_x2": 8, "bbox_y2": 8}


def _struct_array(elements: list[dict[str, object]]) -> np.ndarray:
    """A 1 x N struct array, as MATLAB saves it."""
    array = np.empty((1, len(elements)), dtype=[(name, object) for name in elements[0]])
    for index, element in enumerate(elements):
        array[0, index] = tuple(element.values())
    return array


def _cell_array(texts: list[str]) -> np.ndarray:
    array = np.empty((1, len(texts)), dtype=object)
    array[0] = texts
    return array
