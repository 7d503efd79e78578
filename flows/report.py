"""The last stage: the answer as a table, a figure and a page."""

from prefect import flow
from prefect.artifacts import create_markdown_artifact

from tasks.context import StudyRequest
from tasks.recording import record_evaluation, record_report
from tasks.reporting import Answer, write_report


@flow(name="report")
def report(request: StudyRequest) -> Answer:
    """Writes the report of a study and returns its answer."""
    compare_url = record_evaluation(request)
    answer = write_report(request, compare_url)
    record_report(request)
    create_markdown_artifact(
        markdown=(
            f"# {answer.question}\n\n{answer.markdown}\n"
            f"- report: `{answer.report}`\n- compare in MLflow: {answer.compare_url}\n"
        ),
        key=f"answer-{artifact_key(request.folder_name)}",
        description=answer.question,
    )
    return answer


def artifact_key(name: str) -> str:
    """Returns a name that Prefect takes as an artifact's key: lowercase letters, digits, dashes."""
    return "".join(c if c.isalnum() and c.isascii() else "-" for c in name.lower()).strip("-")
