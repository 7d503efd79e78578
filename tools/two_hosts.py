"""Runs a study over two hosts that share nothing but a folder for its results.

    python -m tools.two_hosts                           # as root; prints what happens
    python -m tools.two_hosts --page docs/two-hosts.md  # and writes it to a page

Host A has a Ray node, the MLflow server and the driver; host B has a Ray node and the DVC remote.
Each node has its own empty data folder, and fetches the data from B over the network.
Ends with 0 if every promise holds, with 1 if one does not, and with 2 if this machine cannot
create namespaces.
"""

import argparse
import json
import re
import signal
import sqlite3
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import Any

import pyarrow.parquet as pq

from tools.hosts import NoNamespaces, ProgramEnded, check_programs
from tools.two_hosts_run import ADDRESS_A, ADDRESS_B, Say, TwoHosts

RUN_COLUMNS = ("train_seconds", "resumed", "key")
"""Columns of trials.parquet that differ from run to run. The key has the kind of device, which the
driver of a joined cluster does not know."""
# Files only: within one fetch DVC reads the list of files, which ends in .dir, several times.
_REQUEST = re.compile(r'^(\S+) .*"GET (/files/md5/../\w+) HTTP[^"]*" 200')
TEXT = """\
# Two hosts

A study over two hosts, with real processes. The hosts are namespaces of one machine (network,
processes, files, host name), joined by a virtual cable: they reach each other only through their
addresses. As on a cluster, they share the Python environment and a disk for results. Everything
else is separate.

| | host A, 10.77.0.1 | host B, 10.77.0.2 |
|---|---|---|
| Ray, with its token | head node, one CPU | node, one CPU |
| data folder | empty at the start | empty at the start |
| servers | MLflow, which accepts only its own host name | the DVC remote, over HTTP |
| driver | with the project | |

```
python -m tools.two_hosts --page docs/two-hosts.md
```

creates the hosts, runs a tiny study over both with `data_access.mode=dvc`, runs the same study on a
third host alone, compares the two, and removes everything, also after Ctrl-C. It needs root, `ip`,
`unshare` and `nsenter`. `tests/tools/test_two_hosts.py` runs it too. The log, where `ROOT` is the
temporary folder:

```
"""


def main() -> int:
    """Runs the study over both hosts and on one, and prints which promises hold."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--page", type=Path, help="page that gets the log")
    parser.add_argument("--databases", type=Path, help="empty databases, to save half a minute")
    parser.add_argument("--sweep-only", action="store_true", help="run no evaluation, no report")
    options = parser.parse_args()
    command = ["stage", "sweep", "tiny"] if options.sweep_only else ["run", "tiny"]
    # SIGINT too: a shell makes its background processes ignore it.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _stop)
    lines: list[str] = []

    def say(line: str = "") -> None:
        print(line, flush=True)
        lines.append(line)

    try:
        check_programs()
        with TwoHosts(say, command=command, databases=options.databases) as hosts:
            hosts.run_study()
            is_good = check_facts(hosts, say)
            shorten = hosts.shorten
    except NoNamespaces as error:
        print(f"two_hosts: {error}", file=sys.stderr)
        return 2
    except ProgramEnded as error:
        print(f"two_hosts: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("two_hosts: interrupted; both hosts are removed.", file=sys.stderr)
        return 130
    if options.page and is_good:
        write_page(options.page, [shorten(line) for line in lines])
    return 0 if is_good else 1


def check_facts(hosts: TwoHosts, say: Say) -> bool:
    """Prints what each host did, and returns whether every promise holds."""
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
    """Returns the rows of the only sweep of a project, without the columns of one run."""
    (path,) = project.glob("results/*/sweep/trials.parquet")
    return list(pq.read_table(path).drop_columns(list(RUN_COLUMNS)).to_pylist())


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


def write_page(path: Path, lines: Sequence[str]) -> None:
    """Writes the page: the text above and the lines of a log."""
    log = "\n".join(line for line in lines if line.strip())
    path.write_text(f"{TEXT}{log}\n```\n", encoding="utf-8")


def _stop(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
