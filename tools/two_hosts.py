"""Runs a study over two hosts that share nothing but a bucket.

    python -m tools.two_hosts                           # as root; prints what happens
    python -m tools.two_hosts --page docs/two-hosts.md  # and writes it to a page

Host A has a Ray node, the project with its data, and the driver; host B has a Ray node and the
project without data, which it fetches from the bucket. Then both are gone, and host C runs the
same command. Ends with 0 if every promise holds, with 1 if one does not, and with 2 if this machine
cannot create namespaces.
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
from tools.two_hosts_run import BUCKET, Say, TwoHosts, shorten

RUN_COLUMNS = ("train_seconds", "resumed", "key")
"""Columns of trials.parquet that differ from run to run. The key has the kind of device, which the
driver of a joined cluster does not know."""
_REQUEST = re.compile(r'^(\S+) .*"(GET|PUT|POST) /(\S+) HTTP[^"]*" 20[0-9]')
TEXT = """\
# Two hosts

A study over two hosts that share nothing but a bucket, with real processes. The hosts are
namespaces of one machine (network, processes, files, host name) on a virtual network: they reach
each other only through their addresses. Each has its own disk with its own project folder, data
and Ray folder. All else on the machine (Python, the code) is mounted read-only, as from an image,
so no host can leave a file for another.

| | host A, 10.77.0.1 | host B, 10.77.0.2 | host C, 10.77.0.3 | store, 10.77.0.4 |
|---|---|---|---|---|
| Ray, with its token | head node, one CPU | node, one CPU | | |
| project | with data, and the driver | without data | without data | |
| serves | | | | the bucket: DVC remote and `sweep.storage` |

```
python -m tools.two_hosts --page docs/two-hosts.md
```

creates the hosts, runs a tiny study over A and B, removes both, and runs the same sweep on C,
which has only the bucket. It runs the same study on a host alone, compares the two, and removes
everything, also after Ctrl-C. It needs root, `ip`, `unshare` and `nsenter`; the store is moto, a
test dependency. `tests/tools/test_two_hosts.py` runs it too, without evaluation and report. The
log, where `ROOT` is the folder that each host sees as its own disk, and `TREE` the code:

```
"""


def main() -> int:
    """Runs the study over both hosts and on one, and prints which promises hold."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--page", type=Path, help="page that gets the log")
    parser.add_argument("--databases", type=Path, help="empty databases, to save half a minute")
    parser.add_argument(
        "--sweep-only", action="store_true", help="no evaluation, report and host alone"
    )
    options = parser.parse_args()
    # SIGINT too: a shell makes its background processes ignore it.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _stop)
    lines: list[str] = []

    def say(line: str = "") -> None:
        print(line, flush=True)
        lines.append(line)

    try:
        check_programs()
        with TwoHosts(say, sweep_only=options.sweep_only, databases=options.databases) as hosts:
            hosts.run_study()
            is_good = check_facts(hosts, say)
            root = hosts.root
    except NoNamespaces as error:
        print(f"two_hosts: {error}", file=sys.stderr)
        return 2
    except ProgramEnded as error:
        print(f"two_hosts: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("two_hosts: interrupted; the hosts are removed.", file=sys.stderr)
        return 130
    if options.page and is_good:
        write_page(options.page, [shorten(line, root) for line in lines])
    return 0 if is_good else 1


def check_facts(hosts: TwoHosts, say: Say) -> bool:
    """Prints what each host did, and returns whether every promise holds."""
    table = read_table(hosts.project(hosts.a))
    requests = _read_requests(hosts)
    findings = {
        "trials ran on both nodes": _check_places(hosts, table, say),
        "the node without data fetched each part of them once": _check_fetches(
            hosts, requests, say
        ),
        "the trials are in the bucket and on no disk": _check_disks(hosts, say),
        "MLflow has every run, each finished": _check_record(hosts, table, say),
        "a later host has the table from the bucket": _check_later(hosts, table, requests, say),
    }
    if not hosts.sweep_only:
        findings["the table is that of one host"] = _check_table(hosts, table, say)
    for name, is_good in findings.items():
        say(f"{'yes' if is_good else 'NO '}  {name}")
    return all(findings.values())


def read_table(project: Path) -> list[dict[str, Any]]:
    """Returns the rows of the only sweep of a project, without the columns of one run."""
    (path,) = project.glob("results/*/sweep/trials.parquet")
    return list(pq.read_table(path).drop_columns(list(RUN_COLUMNS)).to_pylist())


def _read_requests(hosts: TwoHosts) -> Counter[tuple[str, str, str]]:
    """Returns how often each host made which request of the bucket that was granted."""
    names = {host.address: host.name for host in (hosts.a, hosts.b, hosts.c)}
    log = (hosts.store.folder / "store.log").read_text(encoding="utf-8")
    found = (match for match in map(_REQUEST.match, log.splitlines()) if match)
    return Counter((names.get(by, by), method, path) for by, method, path in map(_groups, found))


def _groups(match: re.Match[str]) -> tuple[str, str, str]:
    return match[1], match[2], match[3].removeprefix(f"{BUCKET}/")


def _check_places(hosts: TwoHosts, table: list[dict[str, Any]], say: Say) -> bool:
    (log,) = hosts.project(hosts.a).glob("results/.sweeps/*/logs/*.jsonl")
    lines = [json.loads(line) for line in log.read_text(encoding="utf-8").splitlines()]
    places = {line["trial"]: line["node"] for line in lines if line["event"] == "trial ended"}
    for trial, node in sorted(places.items()):
        say(f"    {trial} ran on {node}")
    shared = {row["trial_id"] for row in table} - set(places)
    say(f"    {', '.join(sorted(shared)) or 'none'}: the same as another trial, not trained again")
    return set(places.values()) == {hosts.a.name, hosts.b.name}


def _check_fetches(hosts: TwoHosts, requests: Counter[tuple[str, str, str]], say: Say) -> bool:
    # Files only: within one fetch DVC reads the list of files, which ends in .dir, several times.
    fetched = {
        (by, path): times
        for (by, method, path), times in requests.items()
        if method == "GET" and re.fullmatch(r"dvc/files/md5/../\w+", path) and by != hosts.c.name
    }
    for (by, path), times in sorted(fetched.items()):
        say(f"    {by} fetched {path} {times} time(s)")
    # The evaluation fetches the test part, with its own copy of the files that describe both.
    most = 1 if hosts.sweep_only else 2
    return {by for by, _ in fetched} == {hosts.b.name} and max(fetched.values()) <= most


def _check_disks(hosts: TwoHosts, say: Say) -> bool:
    # The winners' journals are results, which the driver copies to its own disk.
    found = [
        str(path.relative_to(hosts.root))
        for host in (hosts.a, hosts.b, hosts.c)
        for path in hosts.project(host).glob("results/.trials/*")
    ]
    say(f"    trials on disks: {', '.join(found) or 'none'}")
    return not found


def _check_record(hosts: TwoHosts, table: list[dict[str, Any]], say: Say) -> bool:
    with sqlite3.connect(hosts.project(hosts.a) / "mlflow.db") as database:
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


def _check_later(
    hosts: TwoHosts,
    table: list[dict[str, Any]],
    requests: Counter[tuple[str, str, str]],
    say: Say,
) -> bool:
    written = [
        path
        for by, method, path in requests
        if by == hosts.c.name and method == "PUT" and path.startswith("trials/trials/")
    ]
    say(f"    {hosts.c.name} wrote to journals: {', '.join(sorted(written)) or 'nothing'}")
    return not written and read_table(hosts.project(hosts.c)) == table


def _check_table(hosts: TwoHosts, table: list[dict[str, Any]], say: Say) -> bool:
    alone = read_table(hosts.project(hosts.alone))
    for row, other in zip(table, alone, strict=True):
        say(f"    {row['trial_id']} {row['score']!r}, on one host {other['score']!r}")
    return table == alone


def write_page(path: Path, lines: Sequence[str]) -> None:
    """Writes the page: the text above and the lines of a log."""
    log = "\n".join(line for line in lines if line.strip())
    path.write_text(f"{TEXT}{log}\n```\n", encoding="utf-8")


def _stop(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
