"""The `dml data` commands; what they do is imported late, as in flows/cli.py."""

from pathlib import Path
from typing import Annotated

import typer

data_app = typer.Typer(
    name="data",
    help="Bring in your own images; keep data in a DVC remote.",
    no_args_is_help=True,
    rich_markup_mode=None,
    epilog="Example: dml data add ~/photos --name birds --set data.image_size_px=64 --write",
)

RemoteOption = Annotated[
    str, typer.Option(help="Name of the DVC remote; the default one if empty.")
]
AllOption = Annotated[bool, typer.Option("--all", help="Also what sweeps and reports wrote.")]


@data_app.command()
def add(
    path: Annotated[Path, typer.Argument(help="A folder class/image, or an archive of one.")],
    name: Annotated[str, typer.Option(help="What to call the dataset.")],
    table: Annotated[
        str, typer.Option(help="CSV or Parquet inside it with paths and classes.")
    ] = "",
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", help="Change a parameter: --set data.color=gray. May be repeated."),
    ] = None,
    params: Annotated[
        Path, typer.Option(help="The YAML file with the parameters.", metavar="FILE")
    ] = Path("params.yaml"),
    write: Annotated[bool, typer.Option("--write", help="Write the parameters to it.")] = False,
) -> None:
    """Check a dataset, track it with DVC, and give the parameters that use it."""
    from flows.commands.data import run_data_add

    run_data_add(path, set_ or [], name=name, table=table, params=params, write=write)


@data_app.command()
def push(remote: RemoteOption = "", everything: AllOption = False) -> None:
    """Upload datasets, raw and prepared, to the DVC remote."""
    from flows.commands.data import run_data_push

    run_data_push(remote=remote, everything=everything)


@data_app.command()
def pull(
    name: Annotated[str, typer.Argument(help="One dataset; all if left out.")] = "",
    remote: RemoteOption = "",
    everything: AllOption = False,
) -> None:
    """Download datasets from the DVC remote."""
    from flows.commands.data import run_data_pull

    run_data_pull(name, remote=remote, everything=everything)
