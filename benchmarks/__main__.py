"""Runs the benchmarks, prints their rows and writes them to a file.

python -m benchmarks [--only NAME ...] [--json FILE] [--short] [--cars PATH] [--render PAGE]
"""

import argparse
import os
import sys
import time
from collections.abc import Callable
from importlib import import_module
from pathlib import Path

from rich.console import Console

from benchmarks.performance_page import render_file
from benchmarks.rows import Row, print_rows, write_rows
from benchmarks.settings import Settings

Benchmark = Callable[[Settings], list[Row]]

BENCHMARKS = {
    "losses": "benchmarks.losses:run_losses",
    "expansion": "benchmarks.expansion:run_expansion",
    "evaluation": "benchmarks.evaluation:run_evaluation",
    "input": "benchmarks.inputs:run_inputs",
    "steps": "benchmarks.steps:run_steps",
    "many_classes": "benchmarks.many_classes:run_rows",
    "frozen_trunk": "benchmarks.frozen_trunk:run_frozen_trunk",
    "fine_tuning": "benchmarks.fine_tuning:run_fine_tuning",
    "pipeline": "benchmarks.pipeline:run_pipeline",
    "scaling": "benchmarks.scaling:run_scaling",
    "scale": "benchmarks.scale:run_scale",
}
"""By name; each is imported when it runs, so that it does not load the libraries of the others."""


def main(arguments: list[str] | None = None) -> int:
    """Returns 1 if two sides that should agree gave different results, else 0."""
    options = _parse(arguments)
    if options.render is not None:
        render_file(options.render, options.json)
        return 0
    settings = Settings(short=options.short, cars=options.cars)
    rows: list[Row] = []
    for name in options.only or BENCHMARKS:
        started = time.perf_counter()
        new = _load(name)(settings)
        print_rows(new, short=settings.short)
        print(f"{name}: measured in {time.perf_counter() - started:.0f} s\n", flush=True)
        rows += new
        if not settings.short:
            write_rows(new, options.json, groups=[name])
    return _report_unequal(rows)


def _parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--only", nargs="+", choices=BENCHMARKS, metavar="NAME")
    parser.add_argument("--json", type=Path, default=Path("results") / "bench.json")
    parser.add_argument("--short", action="store_true", help="compare values, time nothing")
    parser.add_argument("--cars", type=Path, default=_path_in("DML_BENCH_CARS"))
    parser.add_argument("--render", type=Path, help="write the table of --json into this page")
    return parser.parse_args(arguments)


def _path_in(variable: str) -> Path | None:
    value = os.environ.get(variable)
    return Path(value) if value else None


def _load(name: str) -> Benchmark:
    module, _, function = BENCHMARKS[name].partition(":")
    benchmark: Benchmark = getattr(import_module(module), function)
    return benchmark


def _report_unequal(rows: list[Row]) -> int:
    unequal = [row for row in rows if not row.equal]
    for row in unequal:
        Console(stderr=True).print(
            f"{row.group}: {row.name} differs by {row.difference} from {row.against}, "
            f"more than {row.tolerance}"
        )
    return 1 if unequal else 0


if __name__ == "__main__":
    sys.exit(main())
