"""Writes down what was seen when a study ran over two hosts."""

from collections.abc import Sequence
from pathlib import Path

TEXT = """\
# Two hosts

What a study over two hosts looks like, with real processes. The hosts are namespaces of one machine
(network, processes, files, name), joined by a virtual cable: they reach each other only through
their addresses. As on a cluster they have the same Python environment and a shared disk for
results; everything else is their own.

| | host A, 10.77.0.1 | host B, 10.77.0.2 |
|---|---|---|
| Ray, with its token | head node, one CPU | node, one CPU |
| data folder | empty at first | empty at first |
| also | MLflow's server, which answers to its own name only | the DVC remote, over HTTP |
| and | the driver, with the project | |

```
python -m tools.two_hosts --page docs/two-hosts.md
```

makes the hosts, runs a tiny study over both with `data_access.mode=dvc`, runs the same study on a
host of its own, compares, and removes everything, also after Ctrl-C. It needs root, `ip`,
`unshare` and `nsenter`. `tests/tools/test_two_hosts.py` runs it too. The log, with `ROOT` for the
folder that held it all:

```
"""


def write_page(path: Path, lines: Sequence[str]) -> None:
    """Replaces the page by the text above and the lines of a log."""
    log = "\n".join(line for line in lines if line.strip())
    path.write_text(f"{TEXT}{log}\n```\n", encoding="utf-8")
