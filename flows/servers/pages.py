"""The pages about a study: its report, its runs in MLflow, its newest run in Prefect.

Addresses are resolved when they are requested: servers come and go, and change their ports.
"""

import json
import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import parse_qs
from uuid import UUID

from flows.servers.access import authorization, sign_in_to_prefect
from flows.servers.connect import answers
from flows.servers.network import NoAnswer, ask
from flows.servers.record import ServerRecord, load_records

FLOW_NAME = "ablation"
_COMPARISON = re.compile(r"/#/compare-runs\?(\S+)")
_MACHINE_LEARNING = "workflowType=machine_learning"
"""MLflow's pages show traces of language models otherwise, and no models and datasets."""
_TIMEOUT_SECONDS = 5.0


@dataclass(frozen=True)
class StudyPage:
    """One page about a study."""

    title: str
    address: str
    """Short enough for a terminal; empty where there is none now."""
    opened: str = ""
    """The address to open, where another page shows more than the one that is printed."""
    advice: str = ""
    """Why there is no address, and how to get one."""


def tag_of(study: str) -> str:
    """Returns the tag of a study's runs in Prefect."""
    return f"study:{study}"


def tag_run(studies: Sequence[str]) -> None:
    """Tags the run of this flow with its studies, beside the tags that it has.

    `prefect.tags` would tag the runs of all stages with all studies.
    """
    import httpx
    from prefect.client.orchestration import get_client
    from prefect.runtime import flow_run

    if flow_run.id is None:
        return
    chosen = dict.fromkeys([*flow_run.tags, *map(tag_of, studies)])
    # Tags are a convenience: a server that is lost at this moment must not end the run.
    with suppress(httpx.HTTPError), get_client(sync_client=True) as client:
        client.update_flow_run(UUID(flow_run.id), tags=list(chosen))


def list_pages(report: Path, compare_url: str, *, study: str, folder: Path) -> list[StudyPage]:
    """Returns the pages of a study, in the order in which a reader wants them.

    Args:
        report: the page on disk.
        compare_url: as the answer has it: an address, or its path where no server was up.
        study: name of its folders, such as `main@smoke`.
        folder: the project.
    """
    records = {name: each for name, each in load_records(folder).items() if each.is_alive}
    return [
        StudyPage("report", report.resolve().as_uri()),
        _find_mlflow(compare_url, records.get("mlflow")),
        _find_prefect(study, records.get("prefect")),
    ]


def _find_mlflow(compare_url: str, record: ServerRecord | None) -> StudyPage:
    """Returns the table of the experiment's runs; what is opened compares the arms."""
    title = "MLflow"
    found = _COMPARISON.search(compare_url)
    if found is None:
        return StudyPage(title, "", advice="the report has no address of its runs")
    server = compare_url[: found.start()] if compare_url.startswith("http") else ""
    # The server of this folder has the runs, whatever its port was when they were logged.
    if record is not None and answers(record):
        server = record.address
    if not server:
        return StudyPage(title, "", advice="no server is up; start it with: dml up")
    experiments = json.loads(parse_qs(found[1])["experiments"][0])
    table = f"{server}/#/experiments/{experiments[0]}/runs?{_MACHINE_LEARNING}"
    return StudyPage(title, table, f"{server}{found[0]}&{_MACHINE_LEARNING}")


def _find_prefect(study: str, record: ServerRecord | None) -> StudyPage:
    title = "Prefect"
    if record is None or not answers(record):
        return StudyPage(title, "", advice="no server is up; start it with: dml up")
    wanted = {
        "flows": {"name": {"any_": [FLOW_NAME]}},
        "flow_runs": {"tags": {"all_": [tag_of(study)]}},
        "sort": "EXPECTED_START_TIME_DESC",
        "limit": 1,
    }
    try:
        found = ask(
            "POST",
            f"{record.address}/api/flow_runs/filter",
            timeout_seconds=_TIMEOUT_SECONDS,
            content=wanted,
            headers=authorization(sign_in_to_prefect(record)),
        )
    except NoAnswer as error:
        return StudyPage(title, "", advice=f"the server does not answer: {error}")
    if found.status != 200 or not found.content:
        return StudyPage(title, f"{record.address}/runs", advice="no run of this study is there")
    return StudyPage(title, f"{record.address}/runs/flow-run/{found.content[0]['id']}")
