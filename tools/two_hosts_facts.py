"""What has to be seen after a study ran over two hosts."""

import json
import re
import sqlite3
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from tools.two_hosts_run import ADDRESS_A, ADDRESS_B, Say, TwoHosts

OF_THE_WAY = ("train_seconds", "resumed")
"""Columns of trials.parquet that tell of the way, not of the result."""
# Files alone: within one fetch DVC reads its list of them, which ends in .dir, several times.
_REQUEST = re.compile(r'^(\S+) .*"GET (/files/md5/../\w+) HTTP[^"]*" 200')


def check_facts(hosts: TwoHosts, say: Say) -> bool:
    """Says what each part has of the study, and returns whether all is as promised."""
    table = read_table(hosts.project)
    findings = {
        "trials ran on both nodes": _check_places(hosts, table, say),
        "each node fetched the data exactly once": _check_fetches(hosts, say),
        "MLflow has every run, each finished": _check_record(hosts, table, say),
        "the table is that of one node": _check_table(hosts, table, say),
    }
    for name, is_good in findings.items():
        say(f"{'yes' if is_good else 'NO '}  {name}")
    return all(findings.values())


def read_table(project: Path) -> list[dict[str, Any]]:
    """Returns the rows of the one sweep of a project, without what differs from run to run."""
    (path,) = project.glob("results/*/sweep/trials.parquet")
    return list(pq.read_table(path).drop_columns(list(OF_THE_WAY)).to_pylist())


def _check_places(hosts: TwoHosts, table: list[dict[str, Any]], say: Say) -> bool:
    (log,) = hosts.project.glob("results/.sweeps/*/logs/*.jsonl")
    lines = [json.loads(line) for line in log.read_text(encoding="utf-8").splitlines()]
    places = {line["trial"]: line["node"] for line in lines if line["event"] == "trial ended"}
    for trial, node in sorted(places.items()):
        say(f"    {trial} ran on {node}")
    shared = {row["trial_id"] for row in table} - set(places)
    say(f"    {', '.join(sorted(shared)) or 'none'}: the same as another trial, not trained again")
    return set(places.values()) == {hosts.a.name, hosts.b.name}


def _check_fetches(hosts: TwoHosts, say: Say) -> bool:
    log = (hosts.b.folder / "remote.log").read_text(encoding="utf-8")
    fetched = Counter(
        (match[1], match[2]) for match in map(_REQUEST.match, log.splitlines()) if match
    )
    for (address, path), times in sorted(fetched.items()):
        say(f"    {address} fetched {path} {times} time(s)")
    by_address = {
        address: {path for client, path in fetched if client == address}
        for address in (ADDRESS_A, ADDRESS_B)
    }
    has_same = by_address[ADDRESS_A] == by_address[ADDRESS_B] != set()
    return has_same and set(fetched.values()) == {1}


def _check_record(hosts: TwoHosts, table: list[dict[str, Any]], say: Say) -> bool:
    with sqlite3.connect(hosts.a.folder / "mlflow" / "mlflow.db") as database:
        runs = database.execute(
            "select tags.value, runs.status from runs join tags"
            " on tags.run_uuid = runs.run_uuid and tags.key = 'trial_id'"
        ).fetchall()
    database.close()
    names, statuses = Counter(name for name, _ in runs), {status for _, status in runs}
    trials, arms = ({row[key] for row in table} for key in ("trial_id", "arm"))
    of_trials, of_arms = (len(set(names) & some) for some in (trials, arms))
    say(f"    MLflow on {hosts.a.name}: {of_trials} runs of trials, {of_arms} of arms")
    is_each_once = set(names.values()) == {1} and trials <= set(names) <= trials | arms
    return is_each_once and statuses == {"FINISHED"}


def _check_table(hosts: TwoHosts, table: list[dict[str, Any]], say: Say) -> bool:
    alone = read_table(hosts.root / "alone" / "project")
    for row, other in zip(table, alone, strict=True):
        say(f"    {row['trial_id']} {row['score']!r}, on one node {other['score']!r}")
    return table == alone
