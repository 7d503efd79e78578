"""Lists Omniglot in its official layout."""

from collections import Counter
from pathlib import Path

from dml_core.config.data import OmniglotData
from dml_core.data.records import ImageRecord, Role, SourceListing
from dml_core.data.sources.official import OfficialCounts, official_listing
from dml_core.data.sources.raw_search import Distribution, RawSearch, common_root

OMNIGLOT = Distribution(
    name="omniglot",
    title="Omniglot (published by Brenden Lake with the one-shot learning paper)",
    download="images_background.zip and images_evaluation.zip",
    archive_stems=("images_background", "images_evaluation", "omniglot*"),
    in_parts=True,
)
OMNIGLOT_COUNTS = OfficialCounts(
    train_classes=964, train_images=19_280, test_classes=659, test_images=13_180
)


def list_omniglot(
    config: OmniglotData, *, counts: OfficialCounts = OMNIGLOT_COUNTS
) -> SourceListing:
    """Returns the drawings; a class is a character of an alphabet, as `Greek/character01`.

    Background characters are for training, evaluation characters for the test.

    Raises:
        DatasetError: if the download is missing, partial or altered.
    """
    search = RawSearch(config, OMNIGLOT)
    background = search.require("images_background") / "images_background"
    evaluation = search.require("images_evaluation") / "images_evaluation"
    groups = {
        "images_background": _read_records(background, role="train"),
        "images_evaluation": _read_records(evaluation, role="test"),
    }
    return official_listing(
        groups,
        root=common_root([background, evaluation]),
        distribution=OMNIGLOT,
        counts=counts,
        other_problems=_uneven_characters(groups, counts.train_images // counts.train_classes),
    )


def _read_records(folder: Path, *, role: Role) -> list[ImageRecord]:
    return [
        ImageRecord(
            path=file.relative_to(folder.parent).as_posix(),
            class_name=file.parent.relative_to(folder).as_posix(),
            role=role,
            file=file,
        )
        for file in sorted(folder.glob("*/*/*.png"))
        if not file.name.startswith(".")
    ]


def _uneven_characters(groups: dict[str, list[ImageRecord]], drawings: int) -> list[str]:
    lines = []
    for part, records in groups.items():
        for name, found in Counter(record.class_name for record in records).items():
            if found != drawings:
                lines.append(f"{part}/{name} must have {drawings} drawings, found {found}.")
    return lines
