"""The measures by name, and their file for a study."""

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
from dml_core.measures.step_cost import measure_step_cost

MEASURES: dict[str, Callable[[Sequence[WinnerFolder]], Measured]] = {
    "gradients": measure_gradients,
    "step_cost": measure_step_cost,
}


def measure_study(names: Sequence[str], winners: Path, folder: Path) -> Path | None:
    """Writes measures.json with what a study asks to be measured on its winners.

    Args:
        names: keys of MEASURES; where there are none, no file is left.
        winners: the `<arm>-seed<k>` folders of the sweep.
        folder: gets the file.

    Returns:
        The file, or None.
    """
    if not names:
        (folder / MEASURES_FILE).unlink(missing_ok=True)
        return None
    found, measured = list_winners(winners), Measured()
    for name in names:
        measured.update(MEASURES[name](found))
    return write_measures(measured, folder)
