"""Frees what a study takes on disk, and keeps DVC's and MLflow's records true.

The report, its answer and the test scores stay unless they are named: they are small, and what a
reader comes back for. Journals that another study names always stay.
"""

import json
import shutil
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil

from dml_core.measures.results import SCORES_FILE
from dml_core.trials.ledger import check_is_free, hold_folder
from dml_core.trials.store import LocalStore
from tasks.report_page.page import write_front_page
from tasks.run_log import list_logs, read_log
from tasks.storage.usage import KINDS, Measure, list_own_trials, list_paths, read_ledgers, to_local
from tasks.study import StudyContext
from tasks.tracking.deleting import DoomedRuns, delete_runs, find_runs
from tasks.versioning.forgetting import Forgotten, find_forgotten, forget
from tasks.versioning.session import has_repo
from tasks.versioning.stages import STAGES, is_versioned, stage_name, untrack_study

PROJECT = Path()
KEPT = ("evaluation", "report")
"""Kinds that stay unless everything is to go."""
_OUTPUTS = {"sweep": "sweep", "evaluation": "evaluate", "report": "report"}
"""The stage whose outputs a kind is."""


class RunWorks(ValueError):
    """A run of the study works now; the message names its process."""


@dataclass(frozen=True)
class CleaningPlan:
    """What will be deleted."""

    context: StudyContext
    paths: Mapping[str, list[Path]]
    """By kind; MLflow's are folders of artifacts."""
    sizes: Mapping[str, int]
    """Bytes by kind, DVC's cache included."""
    num_shared: int
    """Trials that stay because other studies name them."""
    runs: DoomedRuns
    forgotten: Forgotten

    @property
    def total(self) -> int:
        """All bytes that will be free."""
        return sum(self.sizes.values())

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to delete."""
        return not (any(self.paths.values()) or self.runs.run_ids or self.forgotten.stages)

    def describe(self) -> list[str]:
        """Returns a line for each kind that loses something, and for what stays."""
        lines = [
            f"{kind:11} {show_size(self.sizes.get(kind, 0)):>9}  {self._name(kind)}"
            for kind in KINDS
            if self.paths.get(kind) or (kind == "mlflow" and self.runs.run_ids)
        ]
        if self.forgotten.stages or self.forgotten.objects:
            stages = ", ".join(self.forgotten.stages) or "no stage"
            size = show_size(self.sizes.get("cache", 0))
            lines.append(f"{'DVC':11} {size:>9}  cached copies; dvc.lock loses {stages}")
        if storage := self.context.project.pipeline.sweep.storage:
            lines.append(f"the trials in {storage} stay: remove them with the tools of that store")
        if self.num_shared:
            lines.append(f"{self.num_shared:,} trials stay: other studies name them too")
        if self.runs.num_kept:
            lines.append(
                f"{self.runs.num_kept} runs in MLflow stay: a registered model depends on them"
            )
        return lines

    def _name(self, kind: str) -> str:
        paths = self.paths.get(kind, [])
        if kind == "trials":
            return f"{len(paths):,} journals with their checkpoints"
        if kind == "mlflow":
            return f"{len(self.runs.run_ids):,} runs are marked as deleted, their artifacts removed"
        return ", ".join(map(str, paths))


def plan_cleaning(
    context: StudyContext, *, keep: Collection[str] = (), everything: bool = False
) -> CleaningPlan:
    """Returns what a cleaning deletes; changes nothing.

    Args:
        context: the study.
        keep: kinds that stay, beside the report and the test scores.
        everything: also delete the report and the test scores.

    Raises:
        RunWorks: when a run of the study works.
    """
    check_nothing_works(context)
    request, project = context.request, context.project
    chosen = [k for k in KINDS if k not in keep and (everything or k not in KEPT)]
    results, name = Path(project.pipeline.sweep.results_root), request.folder_name
    own, num_shared = list_own_trials(results, name, read_ledgers(results))
    paths: dict[str, list[Path]] = {
        kind: list_paths(project, name, kind) for kind in chosen if kind not in ("trials", "mlflow")
    }
    runs = DoomedRuns(None)
    if "mlflow" in chosen:
        runs = find_runs(
            project.pipeline.mlflow,
            study=request.study,
            digests=_list_digests(context),
            project=PROJECT,
        )
        found = (to_local(address, PROJECT) for address in runs.artifacts)
        paths["mlflow"] = [path.parent for path in found if path and path.is_dir()]
    store = LocalStore(context.trials_folder)
    # A trial that is being trained belongs to a study that is about to name it.
    paths["trials"] = [p for p in own if "trials" in chosen and not store.is_locked(p.name)]
    forgotten = _plan_forgetting(context, chosen, paths)
    measure = Measure()
    sizes = {kind: measure.add(*listed) for kind, listed in paths.items()}
    sizes["cache"] = measure.add(*forgotten.objects)
    return CleaningPlan(context, paths, sizes, num_shared, runs, forgotten)


def clean(plan: CleaningPlan) -> None:
    """Deletes what a plan lists; after an interruption the same command finishes.

    DVC and MLflow come first: a record of files that are gone would be false, files without a
    record are merely there.
    """
    context = plan.context
    with _held(context):
        if plan.forgotten.stages:
            untrack_study(context.request.study)
        if has_repo(PROJECT):
            forget(PROJECT, plan.forgotten)
        delete_runs(plan.runs, plan.paths.get("mlflow", []))
        store = LocalStore(context.trials_folder)
        for path in plan.paths["trials"]:
            store.remove(path.name)
        for kind in ("sweep", "evaluation", "report", "record"):
            for path in plan.paths.get(kind, []):
                shutil.rmtree(path, ignore_errors=True)
    outputs = context.sweep_folder.parent
    if outputs.is_dir() and not any(outputs.iterdir()):
        outputs.rmdir()
    if plan.paths.get("report"):
        write_front_page(context.report_folder.parent)


def check_nothing_works(context: StudyContext) -> None:
    """Raises RunWorks when a process runs the study.

    The lock of the working folder covers the sweep, the log of a run all of its stages.
    """
    check_is_free(context.working_folder)
    for path in list_logs(context.working_folder)[-1:]:
        last = ""
        for line in read_log(path):
            last = str(line.get("event"))
        pid = path.stem.rpartition("-")[2]
        if last not in ("run ended", "run failed") and _is_alive(int(pid), path):
            raise RunWorks(
                f"a run of {context.request.folder_name} works: process {pid}, since "
                f"{path.stem.partition('-')[0]}. Wait for its end, or stop it, and give the same "
                "command again."
            )


def show_size(size: int) -> str:
    """Returns bytes in the largest unit that gives a number above one."""
    amount = float(size)
    for unit in ("B", "KB", "MB", "GB"):
        if amount < 1000:
            return f"{amount:.0f} {unit}" if unit in ("B", "KB") else f"{amount:.1f} {unit}"
        amount /= 1000
    return f"{amount:.1f} TB"


def _is_alive(pid: int, log: Path) -> bool:
    """Returns whether the process that began a log still exists, and not another of its number."""
    try:
        return psutil.Process(pid).create_time() <= log.stat().st_mtime + 1
    except (psutil.Error, OSError):
        return False


def _list_digests(context: StudyContext) -> set[str]:
    """Returns the digests of the study now, and of its last evaluation."""
    digests = {context.study.digest}
    path = context.evaluate_folder / SCORES_FILE
    if path.is_file():
        digests.add(str(json.loads(path.read_text(encoding="utf-8")).get("digest", "")))
    return digests - {""}


def _plan_forgetting(
    context: StudyContext, chosen: Collection[str], paths: Mapping[str, list[Path]]
) -> Forgotten:
    request = context.request
    removed = [path for kind in _OUTPUTS if kind in chosen for path in paths.get(kind, [])]
    if not removed or not is_versioned(request):
        return Forgotten((), ())
    # All of them: without one the others are no longer reproduced.
    names = [stage_name(stage, request) for stage in STAGES if stage in _OUTPUTS.values()]
    return find_forgotten(PROJECT, names, removed)


@contextmanager
def _held(context: StudyContext) -> Iterator[None]:
    """Keeps sweeps of the study out, without leaving a folder behind."""
    existed = context.working_folder.exists()
    with hold_folder(context.working_folder):
        yield
    if not existed:
        shutil.rmtree(context.working_folder, ignore_errors=True)
