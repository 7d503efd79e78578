"""dml data: brings in a dataset, and moves data to and from a DVC remote."""

import shlex
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from flows.commands.terminal import DEFAULT_PARAMS, ParamsOption, say

if TYPE_CHECKING:
    from dml_core.config.trial import TrialConfig

RAW = Path("data") / "raw"
"""The folder that the prepare stage depends on."""
MANY_FILES = 10_000
RemoteOption = Annotated[
    str, typer.Option(help="Name of the DVC remote; the default one if empty.")
]
AllOption = Annotated[
    bool, typer.Option("--all", help="Also the results of sweeps and the reports.")
]
commands = typer.Typer(
    name="data",
    help="Bring in your own images; keep data in a DVC remote.",
    no_args_is_help=True,
    rich_markup_mode=None,
    epilog="Example: dml data add ~/photos --name birds --set data.image_size_px=64 --write",
)


@commands.command()
def add(
    path: Annotated[Path, typer.Argument(help="A folder class/image, or an archive of one.")],
    name: Annotated[str, typer.Option(help="Name of the dataset.")],
    table: Annotated[
        str, typer.Option(help="CSV or Parquet inside it with paths and classes.")
    ] = "",
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", help="Change a parameter: --set data.color=gray. Repeatable."),
    ] = None,
    params: ParamsOption = DEFAULT_PARAMS,
    write: Annotated[bool, typer.Option("--write", help="Write the parameters to FILE.")] = False,
) -> None:
    """Check a dataset, track it with DVC, and print the parameters that use it."""
    from dml_core.config.loading import parse_overrides
    from tasks.step_progress import shown_step
    from tasks.versioning.session import DvcError, has_repo, track

    project = Path.cwd()
    if not has_repo(project):
        raise DvcError(
            f"DVC tracks the data, and {project} is no DVC project: it has no folder .dvc. "
            "Change to the project's folder, or make one: dml init FOLDER (or, here: dvc init)"
        )
    chosen = {"data.table": table, **parse_overrides(set_ or [])}
    # Checked before anything is copied, because the name becomes a part of the copy's path.
    _use_folder(params, name, chosen)
    with _placed_in_raw(path, project=project, name=name) as place:
        raw = place.relative_to(project).as_posix()
        config = _use_folder(params, name, {"data.raw": raw, **chosen})
        with shown_step(f"checking {name}"):
            _check(config)
        with shown_step(f"adding {name} to DVC"):
            tracked = track(project, place).relative_to(project.resolve())
    if place.is_dir() and (count := _count_files(place)) > MANY_FILES:
        say(
            f"  {count:,} files: DVC handles one archive much faster. Consider: tar -cf {name}.tar "
            f"-C {raw} . && dml data add {name}.tar --name {name}-packed"
        )
    say(f"  tracked       {raw} by DVC; keep its hash with: git add {tracked}")
    _hand_over(config, params, write=write)


@commands.command()
def push(remote: RemoteOption = "", everything: AllOption = False) -> None:
    """Upload datasets, raw and prepared, to the DVC remote."""
    from tasks.step_progress import shown_step
    from tasks.versioning.remote import push_data, read_remote

    project = Path.cwd()
    target = read_remote(project, remote)
    with shown_step(f"sending to {target.name}"):
        count = push_data(project, remote=remote, everything=everything)
    done = f"{count:,} files sent" if count else "everything was there already"
    say(f"{target.name} ({target.shown_url}): {done}")


@commands.command()
def pull(
    name: Annotated[str, typer.Argument(help="One dataset; all if left out.")] = "",
    remote: RemoteOption = "",
    everything: AllOption = False,
) -> None:
    """Download datasets from the DVC remote."""
    from tasks.step_progress import shown_step
    from tasks.versioning.remote import pull_data, read_remote

    project = Path.cwd()
    source = read_remote(project, remote)
    with shown_step(f"fetching from {source.name}"):
        paths = pull_data(project, name, remote=remote, everything=everything)
    say(f"{source.name} ({source.shown_url}): {', '.join(paths) or 'everything is here already'}")


def _use_folder(params: Path, name: str, chosen: dict[str, object]) -> "TrialConfig":
    """Returns the parameters of params.yaml with this dataset instead of the former one."""
    from dml_core.config.loading import load_project_config, resolve_trial_config

    layer = load_project_config(params).trial_params
    others = {key: value for key, value in layer.items() if not key.startswith("data.")}
    dataset = {"data.name": "folder", "data.alias": name, **chosen}
    return resolve_trial_config(others, dataset, source=f"{params} with this dataset")


def _check(config: "TrialConfig") -> None:
    from dml_core.asking.pictures import find_byte_copies
    from dml_core.data.duplicates import (
        check_no_leaks,
        describe_duplicates,
        find_similar_names,
        name_places,
        summarise,
    )
    from dml_core.data.prepare import sort_and_check
    from dml_core.data.sources.registry import list_images
    from dml_core.data.splits import split_classes

    listing = list_images(config.data)
    records = sort_and_check(listing.records, dataset=config.data.folder_name)
    split = split_classes(records, config.data)
    say(
        f"{config.data.folder_name}: {len(records):,} images, {len(split.development):,} classes "
        f"to develop on, {len(split.test):,} held back for the test"
    )
    # Compares bytes only; `dml prepare` finds equal pixels and look-alikes.
    places = name_places(split)
    copies = find_byte_copies(records, listing.root, places)
    if config.data.leak_rule == "fail":
        check_no_leaks(copies, config.data)
    num_dropped = 0 if config.data.leak_rule == "allow" else len(copies)
    names = find_similar_names(places)
    for line in describe_duplicates(
        summarise(copies, {}, num_dropped=num_dropped, similar_names=names)
    ):
        say(f"  duplicates    {line}")


def _count_files(folder: Path) -> int:
    return sum(1 for path in folder.rglob("*") if path.is_file())


def _hand_over(config: "TrialConfig", params: Path, *, write: bool) -> None:
    from dml_core.config.loading import to_flat_dict
    from dml_core.config.yaml_files import render_section, write_section

    flat = to_flat_dict(config)
    values = {key.removeprefix("data."): v for key, v in flat.items() if key.startswith("data.")}
    first = {key: values.pop(key) for key in ("name", "alias", "raw", "table")}
    if write:
        write_section(params, "data", first | values)
        say(f"  parameters    written to the section data of {params}")
    else:
        say(f"Replace the section data of {params} with this, or add --write:\n")
        say(render_section("data", first | values))
    asked = shlex.join(["dml", "ask", str(Path(first["raw"], first["table"]))])
    if write:
        say("next: dml run main, or another study of: dml studies")
        say(f"or, for a recipe that suits these images: {asked}")
    else:
        say(f"next: {asked}, which needs no parameters; or, with these, dml run main")


@contextmanager
def _placed_in_raw(path: Path, *, project: Path, name: str) -> Iterator[Path]:
    """Yields the path of a dataset in data/raw; copies one from elsewhere.

    Removes the copy if the block raises; never touches the original.
    """
    from dml_core.data.records import DatasetError
    from tasks.step_progress import shown_step

    source, raw = path.expanduser().resolve(), project.resolve() / RAW
    if not source.exists():
        raise DatasetError(f"there is no file or folder {path}. Name the dataset's folder.")
    if source.is_relative_to(raw) and source != raw:
        yield project / source.relative_to(project.resolve())
        return
    if project.resolve().is_relative_to(source):
        raise DatasetError(f"{path} holds this project itself. Name the folder of the images.")
    target = raw / (name if source.is_dir() else name + "".join(source.suffixes))
    if target.exists():
        raise DatasetError(
            f"{target} must be free for a copy of {path}. Found something there. Choose another "
            f"--name, or add what is there with: dml data add {RAW / target.name} --name {name}"
        )
    say(f"copying {path} to {RAW / target.name}")
    try:
        with shown_step(f"copying {name}"):
            _copy(source, target)
        yield project / RAW / target.name
    except BaseException:
        _remove(target)
        raise


def _copy(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    if source.is_dir():
        # Keeps links: following one may lead out of the dataset or in circles.
        shutil.copytree(source, target, symlinks=True)
    else:
        shutil.copy2(source, target)


def _remove(target: Path) -> None:
    from dml_core.data.sources.raw_search import UNPACKED_SUFFIX, archive_stem

    if target.is_dir():
        shutil.rmtree(target)
        return
    target.unlink(missing_ok=True)
    # The check unpacks an archive beside it.
    unpacked = f"{archive_stem(target.name)}{UNPACKED_SUFFIX}"
    shutil.rmtree(target.with_name(unpacked), ignore_errors=True)
