"""Options that several commands of `dml` share."""

from pathlib import Path
from typing import Annotated

import typer

ParamsOption = Annotated[
    Path, typer.Option("--params", help="The YAML file with the parameters.", metavar="FILE")
]
SetOption = Annotated[
    list[str] | None,
    typer.Option("--set", help="Change a parameter: --set loss.alpha=16. May be repeated."),
]
ProfileOption = Annotated[
    str | None, typer.Option(help="Another size of the study, such as smoke.")
]
DEFAULT_PARAMS = Path("params.yaml")
