"""Runs the measures that a study lists, and writes measures.json."""

from collections.abc import Callable, Sequence
from pathlib import Path

from dml_core.measures.gradients import measure_gradients
from dml_core.measures.results import (
    MEASURES_FILE,
    Measured,
    WinnerFolder,
    list_winners,
    write_measures,
)
from dml_core.measures.search_cost import measure_search_cost
from dml_core.measures.step_cost import measure_step_cost

MEASURES: dict[str, Callable[[Sequence[WinnerFolder]], Measured]] = {
    "gradients": measure_gradients,
    "step_cost": measure_step_cost,
    "search_cost": measure_search_cost,
}


def measure_study(names: Sequence[str], winners: Path, folder: Path) -> Path | None:
    """Writes measures.json with the measures that a study requests.

    Args:
        names: keys of MEASURES; without any, an existing file is removed.
        winners: the `<arm>-seed<k>` folders of the sweep.
        folder: folder of the file.

    Returns:
        The path of the file, or None.
    """
    if not names:
        (folder / MEASURES_FILE).unlink(missing_ok=True)
        return None
    found, measured = list_winners(winners), Measured()
    for name in names:
        measured.update(MEASURES[name](found))
    return write_measures(measured, folder)
