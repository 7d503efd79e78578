"""Reads struct arrays and name lists from the .mat files of Cars-196."""

from pathlib import Path
from typing import Any

import numpy as np
import scipy.io

from dml_core.data.records import DatasetError


def read_structs(file: Path, *, fields: tuple[str, ...]) -> list[dict[str, Any]]:
    """Returns the elements of the struct array `annotations`, each with at least these fields."""
    # A struct array of one element comes without its array.
    elements = [item for item in np.atleast_1d(_read_variable(file, "annotations")).tolist()]
    for element in elements:
        missing = [f for f in fields if not isinstance(element, dict) or f not in element]
        if missing:
            raise DatasetError(
                f"{file} must have annotations with the fields {', '.join(fields)}. "
                f"Found one without {', '.join(missing)}. Download it again."
            )
    return elements


def read_class_names(file: Path) -> list[str]:
    """Returns the cell array `class_names` as text; class 1 comes first."""
    return [str(name) for name in np.atleast_1d(_read_variable(file, "class_names")).tolist()]


def _read_variable(file: Path, name: str) -> Any:
    try:
        content = scipy.io.loadmat(file, simplify_cells=True, variable_names=[name])
    except Exception as error:
        # The reader raises whatever its parts raise on damaged bytes, from IndexError to zlib's.
        raise DatasetError(
            f"{file} must be a MATLAB file of version 5 to 7, for it holds the annotations. "
            f"It cannot be read: {error}. Download it again."
        ) from error
    if name not in content:
        raise DatasetError(
            f"{file} must hold the variable {name!r}, as the official file does. Found none. "
            "Download it again."
        )
    return content[name]
