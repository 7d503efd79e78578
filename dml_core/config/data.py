"""The dataset: its images, and how they are packed, split by class and augmented."""

from pathlib import Path
from typing import Annotated, ClassVar, Literal, Self

from pydantic import Discriminator, Field, Tag, model_validator

from dml_core.config.section import ChosenSection, Plain, Section, read_tag
from dml_core.own_code import PATTERN

ALIAS_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._-]*$"
DATASET_NAMES = frozenset(
    ["glyphs", "cub200", "cars196", "sop", "inshop", "omniglot", "fashion_mnist", "folder"]
)


class DataBase(ChosenSection):
    """Settings that all datasets share."""

    is_published: ClassVar[bool] = False
    """Whether images and split are those of a publication, so that scores compare with others'."""

    prepared_root: str = "data/prepared"
    """Folder with one subfolder for each prepared dataset."""
    image_size_px: int = Field(default=256, ge=8, le=4096)
    """Shorter side of a packed image, in pixels; both sides if resize is square."""
    resize: Literal["shorter", "square"] = "shorter"
    """shorter keeps the aspect ratio and sets the shorter side; square ignores the aspect ratio."""
    color: Literal["rgb", "gray"] = "rgb"
    """Channels of a packed image: three (rgb) or one (gray)."""
    test_fraction: float = Field(default=0.5, gt=0, lt=1)
    """Share of the classes held out for testing, if the dataset has no official split."""
    test_selection: Literal["last", "random"] = "last"
    """last: the last classes by name, as in the papers; random: drawn with split_seed."""
    validation_fraction: float = Field(default=0.25, gt=0, lt=1)
    """Share of the training classes held out for validation; used with folds=1."""
    folds: int = Field(default=1, ge=1, le=20)
    """1: one validation set. k > 1: k class-disjoint folds, each the validation set once."""
    fold: int = Field(default=0, ge=0)
    """Fold that validates this trial; less than folds."""
    split_seed: int = Field(default=0, ge=0, lt=2**32)
    """Seed that draws the validation classes and random test classes. Not the trial's seed."""
    on_bad_image: Literal["refuse", "fail"] = "refuse"
    """refuse lists an unreadable image in refused.csv and continues; fail stops at once."""
    max_refused_fraction: float = Field(default=0.01, ge=0, le=1)
    """Preparation stops if a larger share of the images is refused."""
    on_leak: Literal["fail", "drop", "allow"] | None = None
    """Images that occur in two of train, validation and test: fail refuses the dataset, drop
    removes them from the training side, allow keeps and counts them. Null means allow for published
    datasets, whose scores compare only on all images, and fail for all others."""
    continuous_labels: tuple[str, ...] = ()
    """Manifest columns that form the continuous label; required by log_ratio and dense_triplet."""
    standardize_labels: bool = True
    """Divide each continuous column by its standard deviation over the training images."""
    quantize_bins: int = Field(default=0, ge=0)
    """If above 0, train on classes made by cutting each continuous column into this many bins."""

    @property
    def folder_name(self) -> str:
        """Name of the dataset's folder below prepared_root."""
        return str(getattr(self, "alias"))  # noqa: B009

    @property
    def leak_rule(self) -> Literal["fail", "drop", "allow"]:
        """The rule for images that occur in two splits: on_leak, or the default if it is null."""
        return self.on_leak or ("allow" if self.is_published else "fail")

    @property
    def prepared_path(self) -> Path:
        """Folder of the prepared dataset."""
        return Path(self.prepared_root) / self.folder_name

    @model_validator(mode="after")
    def check_alias_is_not_another_dataset(self) -> Self:
        """Rejects the name of another dataset as alias, because its folder would be replaced."""
        name = str(getattr(self, "name"))  # noqa: B009
        if self.folder_name in DATASET_NAMES - {name}:
            raise ValueError(
                f"has name {name!r} with alias {self.folder_name!r}, which is the name of another "
                f"dataset and would replace its folder. Set data.alias: {name}"
            )
        return self


class GlyphsData(DataBase):
    """The embedded dataset: characters drawn from the fonts that matplotlib ships."""

    name: Literal["glyphs"] = "glyphs"
    """The dataset."""
    alias: str = Field(default="glyphs", pattern=ALIAS_PATTERN)
    """Name of the dataset's folder below prepared_root, and in reports."""
    raw: str = "data/raw"
    """Unused: drawings need no files. The key exists because dvc.yaml refers to it."""
    image_size_px: int = Field(default=28, ge=16, le=128)
    """Side of a drawing in pixels."""
    resize: Literal["shorter", "square"] = "square"
    """Drawings are square, so both choices give the same pixels."""
    color: Literal["rgb", "gray"] = "gray"
    """Drawings have one channel."""
    test_selection: Literal["last", "random"] = "random"
    """random puts characters of each script on both sides."""
    images_per_class: int = Field(default=24, ge=2, le=1000)
    """Number of drawings of each character."""
    rotation_degrees: float = Field(default=10.0, ge=0, le=180)
    """Each drawing is rotated by an angle drawn from plus or minus this value."""
    scale_range: float = Field(default=0.1, ge=0, lt=0.9)
    """Each drawing is scaled by a factor drawn from 1 minus to 1 plus this value."""
    shear_range: float = Field(default=0.1, ge=0, le=1)
    """Each drawing is sheared by a factor drawn from plus or minus this value."""
    shift_px: float = Field(default=5.0, ge=0, le=16)
    """Each drawing is shifted by up to this many pixels along each axis."""
    stroke_px: float = Field(default=1.0, ge=0, le=4)
    """Strokes are thickened by up to this many pixels."""
    clutter: int = Field(default=2, ge=0, le=20)
    """Number of short random lines behind each drawing."""
    noise: float = Field(default=0.05, ge=0, le=1)
    """Standard deviation of the pixel noise, as a share of full contrast."""
    max_classes: int = Field(default=0, ge=0)
    """If above 0, draw only this many characters, for tests and quick looks."""
    draw_seed: int = Field(default=0, ge=0, lt=2**32)
    """Seed of the drawings. Not the trial's seed: all trials share one dataset."""


class DownloadedData(DataBase):
    """A dataset that is read from files."""

    raw: str = "data/raw"
    """The downloaded archive (.tgz, .tar.gz, .tar, .zip), or the folder that holds its content."""
    max_images_per_class: int = Field(default=0, ge=0)
    """If above 0, keep only this many images of each class, the first by path, for quick looks."""


class PublishedData(DownloadedData):
    """A published dataset, with fixed images and classes."""

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
    """Omniglot: 964 background characters for training, 659 evaluation characters for testing."""

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
    """Folder with the four idx files, plain or gzipped; by default that of the Debian package."""
    image_size_px: int = Field(default=28, ge=8, le=4096)
    """Length of the packed image's side, in pixels."""
    color: Literal["rgb", "gray"] = "gray"
    """Images have one channel."""


class FolderData(DownloadedData):
    """Your own images: a tree `class/image`, or a CSV or Parquet table beside the images."""

    name: Literal["folder"] = "folder"
    """The dataset."""
    alias: str = Field(default="folder", pattern=ALIAS_PATTERN)
    """Name of the dataset's folder below prepared_root, and in reports."""
    table: str = ""
    """CSV or Parquet file with the columns below, relative to raw; empty: folders are classes."""
    class_levels: int = Field(default=1, ge=1, le=8)
    """Folder levels that name a class in a tree: 1 for class/image, 2 for group/class/image."""
    path_column: str = Field(default="path", min_length=1)
    """Column with the image's path, relative to the folder of the table."""
    class_column: str = "class"
    """Column with the class; empty: each image is its own class (continuous labels only)."""
    split_column: str = ""
    """Column with train, test, query or gallery; empty: test_fraction splits by class."""


class OwnData(DownloadedData):
    """A reader of the project folder: a function that returns an ImageRecord for each image."""

    name: str = Field(default="python:my_package.my_module:list_images", pattern=PATTERN)
    """`python:`, the module, and the function."""
    alias: str = Field(default="own", pattern=ALIAS_PATTERN)
    """Name of the dataset's folder below prepared_root, and in reports."""
    options: dict[str, Plain] = Field(default_factory=dict)
    """Keyword arguments; raw is passed automatically, as a path."""


DataConfig = Annotated[
    Annotated[GlyphsData, Tag("glyphs")]
    | Annotated[Cub200Data, Tag("cub200")]
    | Annotated[Cars196Data, Tag("cars196")]
    | Annotated[SopData, Tag("sop")]
    | Annotated[InshopData, Tag("inshop")]
    | Annotated[OmniglotData, Tag("omniglot")]
    | Annotated[FashionMnistData, Tag("fashion_mnist")]
    | Annotated[FolderData, Tag("folder")]
    | Annotated[OwnData, Tag("python")],
    Discriminator(read_tag),
]


class AugmentationConfig(Section):
    """Chooses a box in each image, cuts it out, resizes it to the input size and flips it."""

    input_size_px: int = Field(default=0, ge=0, le=4096)
    """Side of the square network input, in pixels; 0 means data.image_size_px."""
    crop: Literal["center", "random_resized", "random", "jitter", "shift"] = "shift"
    """The training box: center (as in evaluation), random_resized (random area and aspect ratio),
    random (input-sized box anywhere), jitter (central box of jittered size and position),
    shift (input-sized box moved by up to shift_px, black outside the image)."""
    min_area: float = Field(default=0.08, gt=0, le=1)
    """random_resized: smallest area of a box, as a share of the image's area."""
    max_aspect: float = Field(default=4 / 3, ge=1, le=4)
    """random_resized: the aspect ratio of a box lies between 1/max_aspect and max_aspect."""
    plain_probability: float = Field(default=0.0, ge=0, le=1)
    """random: probability of squeezing the whole image to the input size instead."""
    size_jitter_px: int = Field(default=12, ge=0)
    """jitter: each side of the box grows or shrinks by up to this many packed pixels."""
    shift_px: int = Field(default=2, ge=0)
    """jitter and shift: the box moves by up to this many packed pixels along each axis."""
    flip: Literal["none", "image", "batch"] = "none"
    """Horizontal flip with probability 0.5: never, of each image, or of the whole batch."""
    evaluation_crop: Literal["center", "whole"] = "center"
    """The evaluation box: input-sized at the center, or the whole image squeezed."""
