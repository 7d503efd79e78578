"""Runs all benchmarks, prints their tables and writes results/benchmarks.json."""

import json
import os
import platform
from pathlib import Path

import faiss
import torch
from rich.console import Console
from rich.table import Table

from benchmarks.evaluation import run_evaluation
from benchmarks.losses import run_losses


def main() -> None:
    """Measures with one thread each, as a trial of a sweep has."""
    torch.set_num_threads(1)
    faiss.omp_set_num_threads(1)
    results: dict[str, list[dict[str, object]]] = {}
    for name, run in (("losses", run_losses), ("evaluation", run_evaluation)):
        results[name] = run()
        _print(name, results[name])
    machine = {"cpu": platform.processor() or platform.machine(), "cores": os.cpu_count()}
    target = Path("results") / "benchmarks.json"
    target.parent.mkdir(exist_ok=True)
    target.write_text(json.dumps({"machine": machine, **results}, indent=2) + "\n")
    Console().print(f"written to {target}")


def _print(title: str, rows: list[dict[str, object]]) -> None:
    table = Table(title=title, title_justify="left")
    for column in rows[0]:
        table.add_column(column, justify="right")
    for row in rows:
        table.add_row(*(f"{v:.3g}" if isinstance(v, float) else str(v) for v in row.values()))
    Console().print(table)


if __name__ == "__main__":
    main()
