"""The table of studies in docs/studies.md, made from the studies' files.

`python -m tests.references.study_table` prints it.
"""

from collections.abc import Iterable, Sequence
from pathlib import Path

from dml_core.config.loading import load_project_config
from dml_core.studies.cost import sum_cost
from dml_core.studies.loading import load_study
from dml_core.studies.resolved import ResolvedStudy


def render_rows(counted: Iterable[tuple[ResolvedStudy, int]]) -> list[str]:
    """Returns a row for each study with its number of trials, up to the minutes."""
    return [
        f"| `{study.name}` | {study.definition.question} | {study.definition.source} "
        f"| {study.definition.figure.kind} | {trials} |"
        for study, trials in counted
    ]


def _print_table(paths: Sequence[Path]) -> None:
    project = load_project_config(Path("params.yaml"))
    for path in paths:
        study = load_study(path, project)
        # 0.65 seconds for an epoch, and one to start; two trials at once.
        seconds = {a.name: 1 + 0.65 * study.arm_config(a.name).training.epochs for a in study.arms}
        cost = sum_cost(study, seconds)
        minutes = cost.total_seconds / 2 / 60
        row = render_rows([(study, cost.num_trained)])[0]
        print(f"{row} {max(1, round(minutes))} |")


if __name__ == "__main__":
    _print_table([path for path in sorted(Path("studies").glob("*.yaml")) if path.stem != "main"])
