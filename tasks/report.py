"""Writes a study's report: its answer, figures, tables and page."""

import csv
import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from prefect import task

from dml_core.analysis.claims import Judgement, judge_claims
from dml_core.analysis.convergence import find_late_gains
from dml_core.analysis.observations import Observations, load_observations
from dml_core.analysis.scored_study import summarize_scores
from dml_core.analysis.summary import StudySummary
from dml_core.data.atomic_folder import folder_lock, replaced_folder
from dml_core.measures.results import read_scores
from tasks.machine_faults import clear_machine_faults, is_momentary
from tasks.report_page.answer import (
    FILE_NAME,
    READING,
    Answer,
    count_verdicts,
    make_answer,
    make_headline,
    read_answer_file,
)
from tasks.report_page.classes import embed_worst_classes, make_class_tables
from tasks.report_page.page import write_front_page, write_page, write_summary
from tasks.report_page.pictures import draw_figures, draw_pictures
from tasks.report_page.search_cost import draw_search_cost
from tasks.report_page.tables import (
    collect_facts,
    make_arm_table,
    make_command,
    make_factor_table,
    make_metric_table,
)
from tasks.report_page.take_away import make_take_away
from tasks.step_progress import shown_step
from tasks.study import StudyContext, StudyRequest, load_context

__all__ = ["Answer", "read_answer", "summarize_study", "write_report"]


@task(retries=2, retry_delay_seconds=[2, 10], retry_condition_fn=is_momentary, timeout_seconds=900)
def write_report(request: StudyRequest, compare_url: str) -> Answer:
    """Writes the page, the figures with their numbers, and metrics.json; safe to run twice."""
    context = load_context(request)
    observations = load_observations(context.sweep_folder, context.evaluate_folder)
    summary, judgements = _summarize(context, observations)
    budget = json.loads((context.sweep_folder / "winners.json").read_text(encoding="utf-8"))
    gains = find_late_gains(context.study, observations)
    answer = make_answer(
        context.study, summary, budget, judgements, gains, command=_command_for_seeds(context)
    ).model_copy(
        update={
            "report": str(context.report_folder / "index.html"),
            "compare_url": compare_url,
        }
    )
    target = context.report_folder
    with clear_machine_faults(target.parent), shown_step(f"drawing the report of {target.name}"):
        with folder_lock(target), replaced_folder(target) as folder:
            _write_numbers(folder, answer, summary, observations)
            _write_pages(folder, context, answer, (summary, judgements, observations))
        write_front_page(target.parent)
    return answer


def summarize_study(context: StudyContext) -> tuple[StudySummary, list[Judgement]]:
    """Returns what the evaluated winners of a study say of its arms and of its claims."""
    observations = load_observations(context.sweep_folder, context.evaluate_folder)
    return _summarize(context, observations)


def _summarize(
    context: StudyContext, observations: Observations
) -> tuple[StudySummary, list[Judgement]]:
    summary = summarize_scores(context.study, observations, command=_command_for_seeds(context))
    judgements = judge_claims(
        context.study,
        observations,
        summary.comparisons,
        smallest_effect=context.study.definition.smallest_effect,
        num_looks=context.study.num_looks,
    )
    return summary, judgements


def _command_for_seeds(context: StudyContext) -> str:
    return make_command(context.request, "run", "--until-decided")


def read_answer(context: StudyContext) -> Answer:
    """Returns the answer of an existing report."""
    return read_answer_file(context.report_folder)


def _write_pages(
    folder: Path,
    context: StudyContext,
    answer: Answer,
    found: tuple[StudySummary, list[Judgement], Observations],
) -> None:
    summary, judgements, observations = found
    study, scores = context.study, read_scores(context.evaluate_folder)
    facts = collect_facts(context, scores)
    content: dict[str, Any] = {
        **answer.model_dump(),
        "source": study.definition.source,
        "headline": make_headline(summary, judgements, remedy=answer.remedy),
        "arm_table": make_arm_table(summary, answer.budget, metric=answer.metric),
        "factor_table": make_factor_table(summary, metric=answer.metric),
        "metric_table": make_metric_table(study, observations),
        "class_tables": make_class_tables(context.evaluate_folder),
        "reading": READING,
        "take_away": make_take_away(context, answer),
        "facts": facts,
        "date": f"{datetime.now(UTC):%Y-%m-%d}",
    }
    drawn = folder / "figures"
    figures = draw_figures(study, observations, drawn)
    figures += draw_search_cost(study, observations, drawn)
    pictures = draw_pictures(
        study, observations, evaluate_folder=context.evaluate_folder, folder=drawn
    )
    content["class_pictures"] = embed_worst_classes(context.evaluate_folder)
    write_page(folder / "index.html", figures=figures, pictures=pictures, content=content)
    front = {key: content[key] for key in ("study", "question", "headline", "date")}
    front["claims"] = count_verdicts(judgements) if judgements else {}
    front["commit"] = next((fact.value for fact in facts if fact.name == "git commit"), "")
    write_summary(folder, front)


def _write_numbers(
    folder: Path, answer: Answer, summary: StudySummary, observations: Observations
) -> None:
    # The comparison with the accepted result is not part of this result.
    text = answer.model_dump_json(indent=2, exclude={"watch", "has_dropped"})
    (folder / FILE_NAME).write_text(text + "\n", encoding="utf-8")
    name = answer.metric.removeprefix("test.")
    means = {row.arm: {name: row.mean} for row in summary.rows}
    text = json.dumps(means, indent=2, sort_keys=True)
    (folder / "metrics.json").write_text(text + "\n", encoding="utf-8")
    path = folder / "plots" / "scores.csv"
    path.parent.mkdir(parents=True)
    with open(path, "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["arm", "seed", name])
        for arm, by_seed in sorted(observations.scalars(answer.metric).items()):
            writer.writerows([arm, seed, value] for seed, value in sorted(by_seed.items()))
