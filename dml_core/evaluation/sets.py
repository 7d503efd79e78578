"""Tells which images are queries and which of them are searched."""

# N = images

from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from dml_core.evaluation.arrays import BoolArray

Scalar = TypeVar("Scalar", bound=np.generic)


@dataclass(frozen=True)
class QueryAndGallery:
    """Which rows are queries and which are the gallery."""

    is_query: BoolArray | None
    """(N,); None where every image is searched among all others."""

    def split(
        self, values: npt.NDArray[Scalar]
    ) -> tuple[npt.NDArray[Scalar], npt.NDArray[Scalar] | None]:
        """Returns the queries' rows of (N, ...) values, and the gallery's rows.

        The gallery is None where the queries are the gallery.
        """
        if self.is_query is None:
            return values, None
        return values[self.is_query], values[~self.is_query]


def split_by_role(roles: npt.NDArray[np.str_] | None, *, num_rows: int) -> QueryAndGallery:
    """Returns the sets that (N,) roles name.

    Roles without `query` and `gallery` (or no roles) search every image among all others.

    Raises:
        ValueError: where only one of the two is named, or others stand beside them.
    """
    if roles is None:
        return QueryAndGallery(None)
    if roles.shape != (num_rows,):
        raise ValueError(
            f"evaluation: roles must name one role for each of the {num_rows} images. "
            f"Got shape {roles.shape}."
        )
    names = set(np.unique(roles).tolist())
    if not names & {"query", "gallery"}:
        return QueryAndGallery(None)
    if names != {"query", "gallery"}:
        raise ValueError(
            "evaluation: roles must be 'query' and 'gallery', both, where one of them is used, "
            f"since queries are searched in the gallery alone. Got {sorted(names)}. "
            "Leave out the other images, or give no roles."
        )
    return QueryAndGallery(roles == "query")
