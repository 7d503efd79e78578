"""Archives are known by their names."""

import pytest

from dml_core.data.sources.raw_search import Distribution, archive_stem

TWO_PARTS = Distribution(
    name="letters",
    title="Letters (published by nobody)",
    download="images.zip and labels.zip",
    archive_stems=("images*", "labels"),
    in_parts=True,
)


@pytest.mark.parametrize(
    ("name", "stem"),
    [
        ("CUB_200_2011.tgz", "CUB_200_2011"),
        ("a.tar.gz", "a"),
        ("a.b.ZIP", "a.b"),
        ("notes.txt", None),
        (".zip", None),
    ],
)
def test_the_stem_is_the_name_without_the_archive_suffix(name: str, stem: str | None):
    assert archive_stem(name) == stem


def test_archives_are_ranked_by_their_patterns_whatever_the_case():
    names = ["Labels.zip", "IMAGES (1).tgz", "labels_old.zip", "images.txt"]
    assert [TWO_PARTS.rank_archive(name) for name in names] == [1, 0, None, None]


def test_the_advice_names_the_download_and_the_key():
    assert TWO_PARTS.advice() == (
        "Download images.zip and labels.zip of Letters (published by nobody), and set data.raw "
        "to the folder with these files."
    )
