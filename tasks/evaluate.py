"""Evaluates a study's winners on the test classes: the only reader of the test split."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from prefect import task

from dml_core.analysis.scored_study import find_shipped
from dml_core.config import TrialConfig
from dml_core.config.pipeline import DataAccessConfig, RayConfig
from dml_core.data.atomic_folder import folder_lock, replaced_folder
from dml_core.data.prepared import open_test
from dml_core.measures.of_study import MEASURES
from dml_core.measures.results import (
    SCORES_FILE,
    Measured,
    WinnerFolder,
    WinnerScores,
    collect_scores,
    list_winners,
    write_measures,
    write_scores,
)
from dml_core.measures.untrained import list_untrained
from dml_core.training.errors import DamagedCheckpoint
from tasks.evaluate_models import (
    PART_IMAGES,
    ModelJob,
    Work,
    measure_winners,
    run_work,
    score_untrained,
    score_winner,
    show_model,
)
from tasks.machine_faults import clear_machine_faults, is_momentary
from tasks.step_progress import StepProgress, shown_step
from tasks.study import StudyContext, StudyRequest, load_context
from tasks.sweep.cluster import connect
from tasks.sweep.node_job import NodeJob, node_jobs
from tasks.sweep.ray_map import map_on_ray

FEW_IMAGES = 10_000
"""Below this number of images, over all evaluations, this process is faster than a cluster that
has to be started."""
_AT_ONCE = 2
"""Models of a large test set that are evaluated at once: one searches while the next embeds."""


# No time-out: the time depends on images and winners, and a time-out would leave processes behind.
@task(retries=2, retry_delay_seconds=[2, 10], retry_condition_fn=is_momentary)
def evaluate_study(request: StudyRequest) -> Path:
    """Writes the evaluation of a study's winners, whole or not at all; running it twice is safe.

    It writes scores.json; for the best model the retrieval grid, the embeddings, an index and a
    map of them, and the scores by class; and measures.json where the study requests measures.
    """
    # Late: a run with nothing to do does not need these, and DVC takes a second to import.
    from dml_core.data.writing import DEVELOPMENT, TEST
    from tasks.versioning.restoring import ensure_whole

    context = load_context(request)
    winners = context.sweep_folder / "winners"
    if not winners.is_dir():
        raise FileNotFoundError(
            f"{winners} does not exist: study {request.study} has no winners yet. "
            f"Run: dml run {request.study}"
        )
    with clear_machine_faults(context.evaluate_folder.parent):
        for data in context.datasets:
            ensure_whole(data, (DEVELOPMENT, TEST))
        with shown_step(f"evaluating {request.folder_name}") as progress:
            if _lacks_checkpoint(winners):
                _restore_winners(context)
            try:
                return _evaluate(context, winners, progress)
            except DamagedCheckpoint:
                # Checked only now, so that intact checkpoints are not read twice.
                _restore_winners(context)
                return _evaluate(context, winners, progress)


def _lacks_checkpoint(winners: Path) -> bool:
    folders = [path for path in winners.glob("*-seed*") if path.is_dir()]
    return len(list_winners(winners)) < len(folders)


def _restore_winners(context: StudyContext) -> None:
    from tasks.versioning.winners import restore_winners

    restore_winners(context)


def _evaluate(context: StudyContext, folder: Path, progress: StepProgress) -> Path:
    winners, names = list_winners(folder), context.study.definition.measures
    configs = {winner.name: winner.load_config() for winner in winners}
    untrained = list_untrained(configs.values())
    with _workers(context, winners, progress) as workers:
        jobs = {w.name: workers.make_job(w.name, configs[w.name], w.path) for w in winners}
        without, scored = _score_all(workers, jobs, untrained)
        scores = collect_scores(context.study.name, context.study.digest, scored)
        measured = _measure_all(workers, names, list(jobs.values()))
        target = context.evaluate_folder
        with folder_lock(target), replaced_folder(target) as made:
            if names:
                write_measures(measured, made)
            write_scores(replace(scores, untrained=without), made)
            # The scores recommend an arm, whose model is shown.
            shipped = find_shipped(context.study, sweep_folder=folder.parent, evaluate_folder=made)
            for shown in workers.run([(show_model, jobs[shipped.name])]):
                for name, content in shown.items():
                    (made / name).write_bytes(content)
    return target / SCORES_FILE


def _score_all(
    workers: "_Workers", jobs: Mapping[str, ModelJob], untrained: Mapping[str, TrialConfig]
) -> tuple[dict[str, dict[str, float]], list[WinnerScores]]:
    """Returns the scores without training, and those of the winners."""
    # The networks without training come first: one may take as long as several winners.
    work: list[Work] = [(score_untrained, workers.make_job(*each)) for each in untrained.items()]
    work += [(score_winner, job) for job in jobs.values()]
    found = workers.run(work, can_split=True)
    without = {name: next(found) for name in untrained}
    return without, [next(found) for _ in jobs]


def _measure_all(workers: "_Workers", names: Sequence[str], jobs: list[ModelJob]) -> Measured:
    """Takes the measures of a study, first those that are taken winner by winner."""
    measured = Measured()
    for name in sorted(names, key=lambda each: not MEASURES[each].takes_one):
        groups = [[job] for job in jobs] if MEASURES[name].takes_one else [jobs]
        # Those that compare winners measure time: each runs alone.
        for found in workers.run([(partial(measure_winners, name=name), each) for each in groups]):
            measured.update(found)
    return measured


@dataclass(frozen=True)
class _Workers:
    """Runs the work of an evaluation: in this process, or by tasks of the joined cluster."""

    make_place: Callable[[TrialConfig], NodeJob]
    ray: RayConfig | None
    """The resources of a task; None for this process."""
    splits: bool
    """Whether the test set is large enough to be divided."""
    progress: StepProgress

    def make_job(self, name: str, config: TrialConfig, folder: Path | None = None) -> ModelJob:
        """Returns the job of a model."""
        return ModelJob(
            name,
            self.make_place(config),
            str(folder or ""),
            split_on=self.ray if self.splits else None,
            part_images=PART_IMAGES,
        )

    def run(self, work: Sequence[Work], *, can_split: bool = False) -> Iterator[Any]:
        """Yields the results of the work, in order, and counts them.

        Args:
            work: the functions and their jobs.
            can_split: whether the functions divide their work into tasks of a large test set.
        """
        for done, result in enumerate(self._results(work, can_split=can_split), start=1):
            self.progress.count(done, len(work))
            yield result

    def _results(self, work: Sequence[Work], *, can_split: bool) -> Iterator[Any]:
        if self.ray is None:
            return (run_work(None, each) for each in work)
        sent = ((function, _send(job)) for function, job in work)
        is_split = self.splits and can_split
        ahead = _AT_ONCE if is_split else 0
        return map_on_ray(run_work, None, sent, config=self.ray, ahead=ahead, is_idle=is_split)


def _send(job: ModelJob | list[ModelJob]) -> ModelJob | list[ModelJob]:
    return [each.send() for each in job] if isinstance(job, list) else job.send()


@contextmanager
def _workers(
    context: StudyContext, winners: Sequence[WinnerFolder], progress: StepProgress
) -> Iterator[_Workers]:
    """Yields this process for few images, or else the cluster of the run."""
    pipeline = context.project.pipeline
    images = len(open_test(winners[0].load_config().data)[0]) if winners else 0
    if pipeline.ray.address == "local" and len(winners) * images < FEW_IMAGES:
        yield _Workers(node_jobs(DataAccessConfig()), None, False, progress)
        return
    ranks = max(context.study.arm_config(arm.name).trial.workers for arm in context.study.arms)
    with connect(pipeline.ray, workers=ranks):
        make_place = node_jobs(pipeline.data_access)
        yield _Workers(make_place, pipeline.ray, images > PART_IMAGES, progress)
