"""Which images there are, how they are packed and augmented, and which classes are for what."""

from pathlib import Path
from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field, model_validator

from dml_core.config.section import ChosenSection, Section

ALIAS_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._-]*$"
DATASET_NAMES = frozenset(
    ["glyphs", "cub200", "cars196", "sop", "inshop", "omniglot", "fashion_mnist", "folder"]
)


class DataBase(ChosenSection):
    """What every dataset has."""

    is_published: ClassVar[bool] = False
    """Whether its images and split are those of a publication, which scores are compared with."""

    prepared_root: str = "data/prepared"
    """Folder that holds one folder for each prepared dataset."""
    image_size_px: int = Field(default=256, ge=8, le=4096)
    """Length of the packed image's shorter side, in pixels (both sides where resize is square)."""
    resize: Literal["shorter", "square"] = "shorter"
    """shorter keeps the aspect and sets the shorter side; square ignores the aspect."""
    color: Literal["rgb", "gray"] = "rgb"
    """Channels that are packed: three (rgb) or one (gray)."""
    test_fraction: float = Field(default=0.5, gt=0, lt=1)
    """Share of the classes held back for the test, where the dataset has no official split."""
    test_selection: Literal["last", "random"] = "last"
    """Test classes are the last ones by name (the papers' custom), or drawn by split_seed."""
    validation_fraction: float = Field(default=0.25, gt=0, lt=1)
    """Share of the training classes set aside to choose hyperparameters on (with one fold)."""
    folds: int = Field(default=1, ge=1, le=20)
    """1: one validation set. k > 1: k class-disjoint folds, each the validation set once."""
    fold: int = Field(default=0, ge=0)
    """Which fold is the validation set of this trial; below folds."""
    split_seed: int = Field(default=0, ge=0, lt=2**32)
    """Seed of the choice of validation (and random test) classes. Not the trial's seed."""
    on_bad_image: Literal["refuse", "fail"] = "refuse"
    """refuse writes an unreadable image to refused.csv and goes on; fail stops at once."""
    max_refused_fraction: float = Field(default=0.01, ge=0, le=1)
    """Preparing stops when a larger share of the images was refused."""
    on_leak: Literal["fail", "drop", "allow"] | None = None
    """Images that two of train, validation and test have: fail refuses them, drop takes them out
    of the training side, allow keeps and counts them. Null: allow for published datasets, whose
    scores compare on all images only, and fail for all others."""
    continuous_labels: tuple[str, ...] = ()
    """Columns of the manifest that are the continuous label; needed by log_ratio."""
    standardize_labels: bool = True
    """Divide each continuous column by its standard deviation over the training images."""
    quantize_bins: int = Field(default=0, ge=0)
    """Above 0: train on classes made by cutting each continuous column into so many bins."""

    @property
    def folder_name(self) -> str:
        """Name of the dataset's folder below prepared_root."""
        return str(getattr(self, "alias"))  # noqa: B009

    @property
    def leak_rule(self) -> Literal["fail", "drop", "allow"]:
        """What happens to images that two splits have: on_leak, or what null stands for."""
        return self.on_leak or ("allow" if self.is_published else "fail")

    @property
    def prepared_path(self) -> Path:
        """Folder of the prepared dataset."""
        return Path(self.prepared_root) / self.folder_name

    @model_validator(mode="after")
    def check_alias_is_not_another_dataset(self) -> Self:
        """Refuses an alias left over from another dataset, whose folder would be replaced."""
        name = str(getattr(self, "name"))  # noqa: B009
        if self.folder_name in DATASET_NAMES - {name}:
            raise ValueError(
                f"has name {name!r} with alias {self.folder_name!r}, which is the name of another "
                f"dataset, whose folder would be replaced. Set data.alias: {name}"
            )
        return self


class GlyphsData(DataBase):
    """Characters drawn from the fonts that matplotlib carries: the embedded dataset."""

    name: Literal["glyphs"] = "glyphs"
    """The dataset."""
    alias: str = Field(default="glyphs", pattern=ALIAS_PATTERN)
    """Name of the dataset's folder below prepared_root, and in reports."""
    raw: str = "data/raw"
    """Drawings are made of no files. The key is there because dvc.yaml refers to it."""
    image_size_px: int = Field(default=28, ge=16, le=128)
    """Side of a drawing in pixels."""
    resize: Literal["shorter", "square"] = "square"
    """Drawings are square, so both choices give the same pixels."""
    color: Literal["rgb", "gray"] = "gray"
    """Drawings have one channel."""
    test_selection: Literal["last", "random"] = "random"
    """Random, so that each script is found on both sides."""
    images_per_class: int = Field(default=24, ge=2, le=1000)
    """Drawings of each character."""
    rotation_degrees: float = Field(default=10.0, ge=0, le=180)
    """Each drawing is turned by an angle drawn from plus or minus this."""
    scale_range: float = Field(default=0.1, ge=0, lt=0.9)
    """Each drawing is scaled by a factor drawn from 1 minus to 1 plus this."""
    shear_range: float = Field(default=0.1, ge=0, le=1)
    """Each drawing is sheared by a factor drawn from plus or minus this."""
    shift_px: float = Field(default=5.0, ge=0, le=16)
    """Each drawing is moved by up to so many pixels along both axes."""
    stroke_px: float = Field(default=1.0, ge=0, le=4)
    """Strokes are thickened or thinned by up to so many pixels (at four times the size)."""
    clutter: int = Field(default=2, ge=0, le=20)
    """Number of short random lines behind each drawing."""
    noise: float = Field(default=0.05, ge=0, le=1)
    """Standard deviation of the pixel noise, as a share of full contrast."""
    max_classes: int = Field(default=0, ge=0)
    """Above 0: draw only so many characters, for tests and quick looks."""
    draw_seed: int = Field(default=0, ge=0, lt=2**32)
    """Seed of the drawing. Not the trial's seed: all trials share one dataset."""


class DownloadedData(DataBase):
    """A dataset that somebody downloaded."""

    raw: str = "data/raw"
    """The downloaded archive (.tgz, .tar.gz, .tar, .zip), or the folder with it or its content."""
    max_images_per_class: int = Field(default=0, ge=0)
    """Above 0: keep only the first so many images of each class, by path, for quick looks."""


class PublishedData(DownloadedData):
    """A dataset that is the same for everyone, with its images and classes fixed."""

    is_published: ClassVar[bool] = True


class Cub200Data(PublishedData):
    """CUB-200-2011: 100 training and 100 test classes of birds."""

    name: Literal["cub200"] = "cub200"
    """The dataset."""
    alias: str = Field(default="cub200", pattern=ALIAS_PATTERN)
    """Name of the dataset's folder below prepared_root, and in reports."""


class Cars196Data(PublishedData):
    """Cars-196: 98 training and 98 test classes."""

    name: Literal["cars196"] = "cars196"
    """The dataset."""
    alias: str = Field(default="cars196", pattern=ALIAS_PATTERN)
    """Name of the dataset's folder below prepared_root, and in reports."""


class SopData(PublishedData):
    """Stanford Online Products: 11,318 training and 11,316 test classes."""

    name: Literal["sop"] = "sop"
    """The dataset."""
    alias: str = Field(default="sop", pattern=ALIAS_PATTERN)
    """Name of the dataset's folder below prepared_root, and in reports."""


class InshopData(PublishedData):
    """DeepFashion In-Shop: 3,997 training and 3,985 test classes, with query and gallery."""

    name: Literal["inshop"] = "inshop"
    """The dataset."""
    alias: str = Field(default="inshop", pattern=ALIAS_PATTERN)
    """Name of the dataset's folder below prepared_root, and in reports."""


class OmniglotData(PublishedData):
    """Omniglot: 964 background characters for training, 659 evaluation characters for the test."""

    name: Literal["omniglot"] = "omniglot"
    """The dataset."""
    alias: str = Field(default="omniglot", pattern=ALIAS_PATTERN)
    """Name of the dataset's folder below prepared_root, and in reports."""
    image_size_px: int = Field(default=28, ge=8, le=4096)
    """Length of the packed image's side, in pixels."""
    color: Literal["rgb", "gray"] = "gray"
    """Drawings have one channel."""


class FashionMnistData(PublishedData):
    """Fashion-MNIST from its four idx files: 10 classes of clothes."""

    name: Literal["fashion_mnist"] = "fashion_mnist"
    """The dataset."""
    alias: str = Field(default="fashion_mnist", pattern=ALIAS_PATTERN)
    """Name of the dataset's folder below prepared_root, and in reports."""
    raw: str = "/usr/share/dataset-fashion-mnist"
    """Folder with the four idx files, plain or gzipped; the default is the Debian package's."""
    image_size_px: int = Field(default=28, ge=8, le=4096)
    """Length of the packed image's side, in pixels."""
    color: Literal["rgb", "gray"] = "gray"
    """Images have one channel."""


class FolderData(DownloadedData):
    """Your own images: a tree `class/image`, or a CSV or Parquet table beside the images."""

    name: Literal["folder"] = "folder"
    """The dataset."""
    alias: str = Field(default="folder", pattern=ALIAS_PATTERN)
    """Name of this dataset in paths and reports."""
    table: str = ""
    """CSV or Parquet with the columns below, relative to raw; empty: folders are the classes."""
    path_column: str = Field(default="path", min_length=1)
    """Column with the image's path, relative to the folder of the table."""
    class_column: str = "class"
    """Column with the class; empty: each image is a class of its own (continuous labels only)."""
    split_column: str = ""
    """Column that says train, test, query or gallery; empty: test_fraction decides by class."""


DataConfig = Annotated[
    GlyphsData
    | Cub200Data
    | Cars196Data
    | SopData
    | InshopData
    | OmniglotData
    | FashionMnistData
    | FolderData,
    Field(discriminator="name"),
]


class AugmentationConfig(Section):
    """A box is chosen in each image, cut out and resized to the input size; then flips."""

    input_size_px: int = Field(default=0, ge=0, le=4096)
    """Side of the square network input, in pixels; 0 takes data.image_size_px."""
    crop: Literal["center", "random_resized", "random", "jitter", "shift"] = "shift"
    """The training box: center (as in evaluation), random_resized (random area and aspect),
    random (input-sized box anywhere), jitter (central box of jittered size and place),
    shift (input-sized box moved by up to shift_px, black outside)."""
    min_area: float = Field(default=0.08, gt=0, le=1)
    """random_resized: smallest share of the image's area that a box may have."""
    max_aspect: float = Field(default=4 / 3, ge=1, le=4)
    """random_resized: the box's aspect lies between 1/max_aspect and max_aspect."""
    plain_probability: float = Field(default=0.0, ge=0, le=1)
    """random: chance that the whole image is taken and squeezed to the input size instead."""
    size_jitter_px: int = Field(default=12, ge=0)
    """jitter: each side of the box grows or shrinks by up to this, in packed pixels."""
    shift_px: int = Field(default=2, ge=0)
    """jitter and shift: the box moves by up to this along both axes, in packed pixels."""
    flip: Literal["none", "image", "batch"] = "none"
    """Mirror left and right with chance one half: never, each image, or the batch as one."""
    evaluation_crop: Literal["center", "whole"] = "center"
    """The box in evaluation: input-sized at the centre, or the whole image squeezed."""
