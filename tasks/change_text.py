"""Puts the comparison of two results of a study into words."""

from statistics import fmean

from dml_core.history.change import Change
from dml_core.history.record import Result
from dml_core.statistics.summary import Difference
from dml_core.studies.metric_units import Unit, unit_of
from tasks.artifacts import render_table
from tasks.context import StudyRequest


def describe_change(
    request: StudyRequest,
    result: Result,
    accepted: Result | None,
    change: Change | None,
    *,
    is_promoted: bool,
) -> tuple[str, str]:
    """Returns a sentence with what to do, and the comparison as Markdown.

    Args:
        request: the study.
        result: the new result.
        accepted: the one that it is compared with; None for the first of its data.
        change: the comparison; None for the first.
        is_promoted: whether the new result was accepted just now.
    """
    name = request.folder_name
    if accepted is None or change is None:
        text = f"{name}: the first result on data {result.data_hash[:12]}; it is accepted."
        return text, _list_sources(result, None)
    unit = unit_of(result.metric)
    size = _show(change.champion, unit)
    headline = {
        "drop": f"{name} dropped: the champion changed by {size}{_name_worse(change)}.",
        "gain": f"{name} gained: the champion changed by {size}.",
        "no change": f"{name}: no significant change of the champion ({size}).",
    }[change.verdict]
    headline += _advise(change.verdict, request, is_promoted=is_promoted)
    return headline, f"{_list_arms(result, accepted, change)}\n{_list_sources(result, accepted)}"


def _name_worse(change: Change) -> str:
    listed = ", ".join(change.worse_arms)
    return f", and these arms dropped: {listed}" if listed else ""


def _advise(verdict: str, request: StudyRequest, *, is_promoted: bool) -> str:
    if is_promoted:
        return " It is accepted, and the alias in MLflow moved to its model."
    if verdict == "no change":
        return ""
    profile = f" --profile {request.profile}" if request.profile else ""
    command = f"dml run {request.study}{profile} --promote"
    if verdict == "gain":
        return f" Make it the champion with: {command}"
    return f" Find the cause (dml history {request.study}), or accept it with: {command}"


def _show(difference: Difference, unit: Unit) -> str:
    if difference.mean is None:
        return "nothing, since no seed is in both results"
    shown = f"{unit.show_difference(difference.mean)}{unit.difference_name}"
    if difference.interval is None:
        return f"{shown} of one seed, which has no interval"
    low, high = (unit.show_difference(end) for end in difference.interval)
    return f"{shown} ({low} to {high}, {difference.num_pairs} seeds)"


def _list_arms(result: Result, accepted: Result, change: Change) -> str:
    unit = unit_of(result.metric)
    rows = [
        [
            f"{arm} (champion)" if arm == result.champion else arm,
            _mean(accepted, arm, unit),
            _mean(result, arm, unit),
            _show(difference, unit),
            "dropped" if arm in change.worse_arms else "",
        ]
        for arm, difference in change.arms.items()
    ]
    columns = ["arm", f"accepted, {result.metric}", "now", "change for the better", ""]
    return render_table(columns, rows)


def _mean(result: Result, arm: str, unit: Unit) -> str:
    return f"{unit.show(fmean(result.scores[arm].values()))}{unit.name}"


def _list_sources(result: Result, accepted: Result | None) -> str:
    both = {"accepted": accepted, "now": result}
    rows = [
        [name, each.time, each.commit, each.data_hash[:12], each.digest[:12], each.champion]
        for name, each in both.items()
        if each is not None
    ]
    return render_table(["result", "time", "commit", "data", "study", "champion"], rows)
