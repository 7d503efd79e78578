"""The last stage: the answer as a table, a figure and a page."""

from prefect import flow

from tasks.artifacts import show_answer
from tasks.record import record_evaluation, record_report
from tasks.report import Answer, write_report
from tasks.study import StudyRequest


@flow(name="report")
def report(request: StudyRequest) -> Answer:
    """Writes the report of a study and returns its answer."""
    compare_url = record_evaluation(request)
    answer = write_report(request, compare_url)
    record_report(request)
    show_answer(request, answer)
    return answer
