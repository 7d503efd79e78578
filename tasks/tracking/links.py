"""Addresses of MLflow's pages for a study."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import quote

from tasks.tracking.address import Tracking, hide_credentials


@dataclass(frozen=True)
class PageLink:
    """Where a page of MLflow is to be seen."""

    path: str
    """The part after the server's address."""
    server: str
    """The server's address; empty where the record is in a file that no server shows yet."""

    @property
    def url(self) -> str:
        """The whole address, or its path where there is no server."""
        return f"{self.server}{self.path}"

    def describe(self) -> str:
        """Returns the address and, where no server shows it, how to start one."""
        if self.server:
            return self.url
        return f"{self.path} (start MLflow with: dml up, and put its address in front)"


def link_comparison(
    tracking: Tracking, *, experiment_ids: Sequence[str], run_ids: Sequence[str]
) -> PageLink:
    """Returns the page that compares runs side by side."""
    runs, experiments = _encode(run_ids), _encode(experiment_ids)
    path = f"/#/compare-runs?runs={runs}&experiments={experiments}"
    return PageLink(path, _server_of(tracking))


def compare_url(
    tracking: Tracking, *, experiment_ids: Sequence[str], run_ids: Sequence[str]
) -> str:
    """Returns the address of the page that compares runs; its path where there is no server."""
    return link_comparison(tracking, experiment_ids=experiment_ids, run_ids=run_ids).url


def link_run(tracking: Tracking, *, experiment_id: str, run_id: str) -> PageLink:
    """Returns the page of one run."""
    return PageLink(f"/#/experiments/{experiment_id}/runs/{run_id}", _server_of(tracking))


def _server_of(tracking: Tracking) -> str:
    return hide_credentials(tracking.uri).rstrip("/") if tracking.is_server else ""


def _encode(values: Sequence[str]) -> str:
    return quote(json.dumps(list(values), separators=(",", ":")), safe="")
