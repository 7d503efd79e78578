"""Runs a study over two hosts with nothing in common but a shared folder for its results.

    python -m tools.two_hosts                           # as root; prints what happens
    python -m tools.two_hosts --page docs/two-hosts.md  # and writes it down

Host A has a Ray node, MLflow's server and the driver; host B has a Ray node and the DVC remote.
Each node has an empty data folder of its own, and fetches the data from B over the network.
Ends with 0 when all that is promised was seen, with 1 when something was not, and with 2 where no
namespaces can be made.
"""

import argparse
import signal
import sys
from pathlib import Path
from types import FrameType

from tools.hosts import NoNamespaces, ProgramEnded, check_programs
from tools.two_hosts_facts import check_facts
from tools.two_hosts_page import write_page
from tools.two_hosts_run import TwoHosts


def main() -> int:
    """Runs the study over both hosts and on one, and says what was seen."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--page", type=Path, help="write the log to this page")
    parser.add_argument("--databases", type=Path, help="empty databases, to save half a minute")
    parser.add_argument("--sweep-only", action="store_true", help="run no evaluation, no report")
    options = parser.parse_args()
    command = ["stage", "sweep", "tiny"] if options.sweep_only else ["run", "tiny"]
    # Also SIGINT, which a process in the background of a shell would ignore.
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
        print("two_hosts: interrupted; both hosts are gone.", file=sys.stderr)
        return 130
    if options.page and is_good:
        write_page(options.page, [shorten(line) for line in lines])
    return 0 if is_good else 1


def _stop(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
