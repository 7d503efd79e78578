"""How a published dataset is distributed, and the words that tell a user to fetch it."""

from dataclasses import dataclass
from fnmatch import fnmatch

from dml_core.data.archives import SUFFIXES


@dataclass(frozen=True)
class Distribution:
    """What a dataset is called, who publishes it, and how its archives are named."""

    name: str
    """The value of data.name."""
    title: str
    """The official name and the publisher, enough to find the download."""
    download: str
    """The files to download, as a user sees them on the publisher's page."""
    archive_stems: tuple[str, ...] = ()
    """Lower-case patterns of the archives' names without suffix, the wanted ones first."""
    in_parts: bool = False
    """Whether the download is several files that lie side by side."""

    def advice(self) -> str:
        """Returns what to download and which key points to it."""
        return (
            f"Download {self.download} of {self.title}, and set data.raw to the "
            f"{'folder with these files' if self.in_parts else 'archive or to its folder'}."
        )

    def rank_archive(self, file_name: str) -> int | None:
        """Returns how early the archive is to be unpacked; None if it is not of this dataset."""
        stem = archive_stem(file_name)
        if stem is None:
            return None
        matches = (i for i, p in enumerate(self.archive_stems) if fnmatch(stem.lower(), p))
        return next(matches, None)


def archive_stem(file_name: str) -> str | None:
    """Returns the name without its archive suffix, or None if it is not an archive's name."""
    for suffix in SUFFIXES:
        if file_name.lower().endswith(suffix) and len(file_name) > len(suffix):
            return file_name[: -len(suffix)]
    return None
