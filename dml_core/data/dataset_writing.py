"""Writes a prepared dataset into an empty folder."""

import functools
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path

from dml_core.data import prepared_info, split_file
from dml_core.data.content_hash import FORMAT_VERSION, compute_content_hash, compute_source_hash
from dml_core.data.packing import pack_record
from dml_core.data.part_writing import PartWriter
from dml_core.data.preparation_job import PreparationJob
from dml_core.data.prepared_info import PreparedInfo
from dml_core.data.records import ImageRecord
from dml_core.data.refusals import Refusals
from dml_core.data.splits import ClassSplit, check_split_has_enough_classes, side_of

REFUSED_FILE = "refused.csv"
DEVELOPMENT = "development"
TEST = "test"


def write_dataset(folder: Path, job: PreparationJob) -> PreparedInfo:
    """Packs all images into the folder and describes them there.

    Raises:
        DatasetError: for bad images as the configuration says, and where the refused ones leave
            too few classes.
    """
    refusals = Refusals(job.config, total=len(job.records))
    columns = sorted(job.records[0].continuous)
    with (
        closing(PartWriter(folder / DEVELOPMENT, columns)) as development,
        closing(PartWriter(folder / TEST, columns)) as test,
    ):
        digests = _pack_all(job, development, test, refusals)
        file_digests = {**development.finish(), **test.finish()}
    split = job.split.restricted_to({*development.class_counts, *test.class_counts})
    check_split_has_enough_classes(split, job.config)
    split_file.save_split(split, folder)
    refusals.write(folder / REFUSED_FILE)
    file_digests |= {REFUSED_FILE: "", split_file.FILE_NAME: ""}
    files = prepared_info.describe_files(folder, file_digests)
    source_hash = compute_source_hash(job.records, digests, job.choices)
    info = _describe(job, (development, test), split, source_hash, refusals.paths, files)
    info.save(folder)
    return info


def _pack_all(
    job: PreparationJob, development: PartWriter, test: PartWriter, refusals: Refusals
) -> list[str]:
    """Fills both parts; returns the digest of each record's source."""
    test_classes = set(job.split.test)
    pack = functools.partial(pack_record, root=job.root, choices=job.choices)
    digests = []
    with closing(job.run(pack, workers=job.workers)) as results:
        for record, packed in zip(job.records, results, strict=True):
            digests.append(packed.digest)
            is_test = record.class_name in test_classes
            if packed.pixels is None:
                refusals.add(record, packed.reason)
            else:
                part = test if is_test else development
                part.add(record, _final_role(record, is_test=is_test), packed.pixels)
    return digests


def _final_role(record: ImageRecord, *, is_test: bool) -> str:
    if side_of(record.role) == "undecided":
        return "test" if is_test else "train"
    return record.role


def _describe(
    job: PreparationJob,
    parts: tuple[PartWriter, PartWriter],
    split: ClassSplit,
    source_hash: str,
    refused: Sequence[str],
    files: Mapping[str, Mapping[str, int | str]],
) -> PreparedInfo:
    development, test = (part.class_counts for part in parts)
    single = sorted(name for name, count in (development + test).items() if count == 1)
    return PreparedInfo(
        format_version=FORMAT_VERSION,
        name=job.config.folder_name,
        channels=job.choices.channels,
        content_hash=compute_content_hash(source_hash, refused),
        source_hash=source_hash,
        split_hash=split.hash(),
        num_development_images=development.total(),
        num_development_classes=len(development),
        num_test_images=test.total(),
        num_test_classes=len(test),
        num_refused=len(refused),
        single_image_classes=tuple(single),
        continuous_columns=tuple(sorted(job.records[0].continuous)),
        values=job.values,
        files=files,
    )
