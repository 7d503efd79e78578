"""Records a study's evaluation, report and best model in the MLflow runs of its sweep."""

import json
import math
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any

from prefect import get_run_logger, task

from dml_core.analysis.recommendation import estimate_arms
from dml_core.analysis.scored_study import find_shipped
from dml_core.config import TrialConfig
from dml_core.config.image_changes import is_of_changed_images
from dml_core.config.loading import to_flat_dict
from dml_core.measures.results import GRID_FILE, WinnerFolder, read_scores
from dml_core.studies.metrics import is_higher_better, unit_of
from dml_core.studies.resolved import ResolvedStudy
from dml_core.trials.spec import TrialSpec
from dml_core.trials.store import open_store
from dml_core.trials.table import read_trials
from tasks.model_facts import collect_model_facts
from tasks.step_progress import shown_step
from tasks.study import StudyContext, StudyRequest, load_context
from tasks.tracking.address import (
    DamagedDatabase,
    PageLink,
    Tracking,
    link_comparison,
    open_tracking,
)
from tasks.tracking.identity import (
    SweepFacts,
    SweepIdentity,
    find_differing_keys,
    keep_numbers,
    make_trial_key,
    read_sweep_facts,
    to_name,
    to_params,
)
from tasks.tracking.runs import PARENT_TAG, SweepRuns
from tasks.tracking.sync import FINISHED, SweepSync, make_trial_tags


def may_pass(task: Any, run: Any, state: Any) -> bool:
    """Returns whether a retry may help: not where a sqlite file cannot be used."""
    return not isinstance(state.data, DamagedDatabase)


@task(retries=3, retry_delay_seconds=[5, 20, 60], retry_condition_fn=may_pass, timeout_seconds=900)
def record_evaluation(request: StudyRequest) -> str:
    """Logs test scores, the retrieval grid and the best model; returns the compare page.

    Runs of the sweep that MLflow lacks, because it was unavailable or its record was deleted, are
    sent first from the journals. Running it twice is safe; a retry helps against a tracking server
    that is briefly unavailable.
    """
    with shown_step(f"recording {request.folder_name} in MLflow"):
        return _record_evaluation(request)


def _record_evaluation(request: StudyRequest) -> str:
    # Late: it loads torch.
    from tasks.tracking.model import register_winner
    from tasks.tracking.version import describe_version

    context = load_context(request)
    scores = read_scores(context.evaluate_folder)
    tracking = open_tracking(context.project.pipeline.mlflow, project=Path())
    facts = read_sweep_facts(context.study, project=Path())
    _bring_up_to_date(context, tracking, facts)
    winner = find_shipped(
        context.study, sweep_folder=context.sweep_folder, evaluate_folder=context.evaluate_folder
    )
    record = log_evaluation(
        tracking,
        context.study,
        facts,
        scores=scores.scores,
        files=EvaluationFiles(
            winners=winner.path.parent,
            retrieval_grids={winner.arm: context.evaluate_folder / GRID_FILE},
        ),
    )
    # Not the arm's run, whose scores are means over the seeds.
    run_id = record.seed_run_ids[winner.arm][winner.seed]
    model = register_winner(
        tracking,
        context.project.pipeline.mlflow,
        # A profile of a study is another model: it must not replace the study's own.
        study=request.folder_name,
        run_id=run_id,
        checkpoint=winner.path / "checkpoint.pt",
    )
    facts_of_model = collect_model_facts(context, winner, scores)
    describe_version(tracking, model, facts_of_model, run_id=run_id)
    get_run_logger().info("registered %s", model.uri)
    return record.comparison.url


@task(retries=3, retry_delay_seconds=[5, 20, 60], retry_condition_fn=may_pass, timeout_seconds=900)
def record_report(request: StudyRequest) -> None:
    """Adds the answer and the figures to the study's run; running it twice is safe."""
    context = load_context(request)
    tracking = open_tracking(context.project.pipeline.mlflow, project=Path())
    facts = read_sweep_facts(context.study, project=Path())
    arms = read_scores(context.evaluate_folder).scores
    if not has_evaluation(tracking, context.study, facts, arms=arms):
        # The record was deleted or replaced while the report was drawn.
        record_evaluation.fn(request)
    log_report(
        tracking,
        context.study,
        facts,
        answer=context.report_folder / "answer.json",
        figures=sorted(
            path
            for path in (context.report_folder / "figures").iterdir()
            if path.suffix in (".png", ".svg")
        ),
    )


def restore_sweep_record(request: StudyRequest) -> None:
    """Brings MLflow back to the finished sweep of a study, after a look that was taken back."""
    context = load_context(request)
    tracking = open_tracking(context.project.pipeline.mlflow, project=Path())
    _bring_up_to_date(context, tracking, read_sweep_facts(context.study, project=Path()))


def _bring_up_to_date(context: StudyContext, tracking: Tracking, facts: SweepFacts) -> None:
    """Sends the parts of the sweep that MLflow lacks."""
    SweepSync(tracking, context.study, facts).sync_finished(
        read_trials(context.sweep_folder / "trials.parquet"),
        store=open_store(context.store_location),
        winners=(context.sweep_folder / "winners.json").read_text(encoding="utf-8"),
    )


Scores = Mapping[str, Mapping[int, Mapping[str, float]]]
"""By arm, seed and metric."""


@dataclass(frozen=True)
class EvaluationFiles:
    """Files that are logged with the scores."""

    winners: Path
    """Folder with `<arm>-seed<k>/checkpoint.pt`."""
    answer: Path | None = None
    """The answer's table, as a file."""
    figures: Sequence[Path] = ()
    """Pictures of the study."""
    retrieval_grids: Mapping[str, Path] = field(default_factory=dict)
    """An image of queries and their neighbours, by arm."""


@dataclass(frozen=True)
class RecordedEvaluation:
    """The runs of a recorded evaluation."""

    experiment_id: str
    parent_run_id: str
    arm_run_ids: Mapping[str, str]
    """The run of each arm: its winner, with the mean over the seeds."""
    seed_run_ids: Mapping[str, Mapping[int, str]]
    """The run of each winner's trial, by arm and seed."""
    comparison: PageLink
    """The page that shows the arms side by side."""


def log_evaluation(
    tracking: Tracking,
    study: ResolvedStudy,
    facts: SweepFacts,
    *,
    scores: Scores,
    files: EvaluationFiles,
) -> RecordedEvaluation:
    """Adds `test.*` metrics and files to the sweep's runs; running it twice is safe.

    The scores of a seed go to the run of its trial, their means to one run an arm, and the answer
    and the figures to the sweep's parent run. Missing runs, as where another machine swept, are
    created.
    """
    runs = SweepRuns(tracking, SweepIdentity.of(study, facts))
    parent = runs.open_parent()
    differing = find_differing_keys(study)
    tuned = {key for arm in study.arms for key in arm.space}
    compared = [*differing, *sorted(tuned - set(differing))]
    record = _EvaluationRecord(runs, facts, ",".join(differing), compared)
    seed_runs: dict[str, dict[int, str]] = {}
    arm_runs = {}
    bounds = _estimate(scores)
    for arm, by_seed in scores.items():
        configs = {seed: _read_config(files.winners, arm, seed) for seed in by_seed}
        seed_runs[arm] = {
            seed: record.log_seed(arm, configs[seed], numbers, files.winners)
            for seed, numbers in by_seed.items()
        }
        numbers = {**_average(list(by_seed.values())), **bounds.get(arm, {})}
        arm_runs[arm] = record.log_arm(arm, configs, numbers, files.retrieval_grids.get(arm))
    _log_parent_files(runs, parent, study, files)
    comparison = link_comparison(
        tracking, experiment_ids=[runs.experiment_id], run_ids=list(arm_runs.values())
    )
    return RecordedEvaluation(runs.experiment_id, parent, arm_runs, seed_runs, comparison)


def has_evaluation(
    tracking: Tracking, study: ResolvedStudy, facts: SweepFacts, *, arms: Collection[str]
) -> bool:
    """Returns whether each of the arms has a run with test scores."""
    runs = SweepRuns(tracking, SweepIdentity.of(study, facts))
    nested = f"tags.stage = 'arm' and tags.`{PARENT_TAG}` = '{runs.open_parent()}'"
    found = runs.client.search_runs([runs.experiment_id], filter_string=nested, max_results=1000)
    return {run.data.tags.get("arm") for run in found} >= set(arms)


def log_report(
    tracking: Tracking,
    study: ResolvedStudy,
    facts: SweepFacts,
    *,
    answer: Path,
    figures: Sequence[Path] = (),
) -> None:
    """Adds a study's answer and figures to its parent run."""
    runs = SweepRuns(tracking, SweepIdentity.of(study, facts))
    files = EvaluationFiles(winners=Path(), answer=answer, figures=figures)
    _log_parent_files(runs, runs.open_parent(), study, files)


@dataclass
class _EvaluationRecord:
    """Writes the runs of winners, by seed and by arm."""

    runs: SweepRuns
    facts: SweepFacts
    differs: str
    compared: Collection[str]
    """Params of the arms' runs. MLflow's comparison page draws the first few that differ, which
    would be keys that only some losses have."""

    def log_seed(
        self, arm: str, config: TrialConfig, numbers: Mapping[str, float], winners: Path
    ) -> str:
        trial_id = f"{arm}-seed{config.seed}"
        spec = TrialSpec(trial_id, self.runs.identity.study, arm, "repeat", 0, {}, config)
        run_id = self._open(spec, make_trial_key(trial_id, config), {}, numbers)
        self.runs.client.log_artifact(run_id, str(winners / trial_id / "checkpoint.pt"))
        _log_config(self.runs, run_id, config)
        return run_id

    def log_arm(
        self,
        arm: str,
        configs: Mapping[int, TrialConfig],
        numbers: Mapping[str, float],
        grid: Path | None,
    ) -> str:
        first = next(iter(configs.values()))
        spec = TrialSpec(arm, self.runs.identity.study, arm, "repeat", 0, {}, first)
        tags = {"stage": "arm", "seed": ",".join(str(seed) for seed in configs)}
        key = make_trial_key(f"arm {arm}", first)
        run_id = self._open(spec, key, tags, numbers, only=self.compared)
        _log_config(self.runs, run_id, first)
        if grid is not None:
            self.runs.client.log_artifact(run_id, str(grid), "retrieval")
        return run_id

    def _open(
        self,
        spec: TrialSpec,
        key: str,
        changes: Mapping[str, Any],
        scores: Mapping[str, float],
        only: Collection[str] = (),
    ) -> str:
        tags = {**make_trial_tags(spec, self.facts, differs=self.differs), **changes}
        tags.pop("number", None)
        run_id = self.runs.open_nested(key, name=spec.trial_id, tags=tags)
        params = to_params(spec.config)
        kept = {name: params[name] for name in map(to_name, only) if name in params}
        self.runs.log_params(run_id, kept or params)
        self.runs.end(
            run_id,
            FINISHED,
            time_ms=_now(),
            metrics=keep_numbers({f"test.{name}": value for name, value in scores.items()}),
        )
        return run_id


def _log_config(runs: SweepRuns, run_id: str, config: TrialConfig) -> None:
    text = json.dumps(to_flat_dict(config), indent=2, ensure_ascii=False)
    runs.client.log_text(run_id, text + "\n", "config.json")


def _log_parent_files(
    runs: SweepRuns, parent: str, study: ResolvedStudy, files: EvaluationFiles
) -> None:
    # The text and not the file, which may have been edited since the run read it.
    if study.text:
        runs.client.log_text(parent, study.text, f"study/{study.path.name}")
    if files.answer is not None:
        runs.client.log_artifact(parent, str(files.answer), "answer")
    for figure in files.figures:
        runs.client.log_artifact(parent, str(figure), "figures")
    for arm, grid in files.retrieval_grids.items():
        runs.client.log_artifact(parent, str(grid), f"retrieval/{to_name(arm)}")


def _read_config(winners: Path, arm: str, seed: int) -> TrialConfig:
    return WinnerFolder(arm, seed, winners / f"{arm}-seed{seed}").load_config()


def _average(seeds: Sequence[Mapping[str, float]]) -> dict[str, float]:
    names = [name for name in seeds[0] if all(name in numbers for numbers in seeds)]
    return {name: fmean(numbers[name] for numbers in seeds) for name in names}


def _estimate(scores: Scores) -> dict[str, dict[str, float]]:
    """Returns `METRIC.low`, `METRIC.high` and `METRIC.p_better` for each arm.

    Scores of changed images have none: they are many, and MLflow's page is slow with many columns.
    Neither have thresholds, of which no value is better.
    """
    names = {name for by_seed in scores.values() for each in by_seed.values() for name in each}
    found: dict[str, dict[str, float]] = {arm: {} for arm in scores}
    for name in sorted(names):
        if name.startswith(("num_", "threshold_")) or is_of_changed_images(name):
            continue
        by_arm = {
            arm: {seed: each[name] for seed, each in by_seed.items() if _is_finite(each.get(name))}
            for arm, by_seed in scores.items()
        }
        estimates = estimate_arms(
            by_arm, higher_is_better=is_higher_better(name), is_share=unit_of(name).is_share
        )
        for arm, numbers in estimates.items():
            found[arm] |= {f"{name}.{kind}": value for kind, value in numbers.items()}
    return found


def _is_finite(value: float | None) -> bool:
    return value is not None and math.isfinite(value)


def _now() -> int:
    return int(time.time() * 1000)
