"""dml data: brings in a dataset, and moves data to and from a DVC remote."""

from pathlib import Path

from dml_core.config.loading import (
    load_project_config,
    parse_overrides,
    resolve_trial_config,
    to_flat_dict,
)
from dml_core.config.trial import TrialConfig
from dml_core.config.yaml_files import render_section, write_section
from dml_core.data.duplicates import (
    FoundImage,
    check_no_leaks,
    describe_duplicates,
    find_copies,
    find_similar_names,
    name_places,
    summarise,
)
from dml_core.data.packing import UNREADABLE, digest_record
from dml_core.data.prepare import sort_and_check
from dml_core.data.sources.registry import list_images
from dml_core.data.splits import split_classes
from flows.commands.raw_folder import MANY_FILES, placed_in_raw
from flows.commands.terminal import say
from tasks.versioning.remote import pull_data, push_data, read_remote
from tasks.versioning.session import DvcError, has_repo, track


def run_data_add(
    path: Path, assignments: list[str], *, name: str, table: str, params: Path, write: bool
) -> None:
    """Checks a dataset, has DVC track it, and prints or writes the parameters that use it."""
    project = Path.cwd()
    if not has_repo(project):
        raise DvcError(
            f"data are tracked by DVC, and {project} is no DVC project: it has no folder .dvc. "
            "Change to the project's folder, or run: dvc init"
        )
    chosen = {"data.table": table, **parse_overrides(assignments)}
    # Before anything is copied, because the name becomes a part of the copy's path.
    _use_folder(params, name, chosen)
    with placed_in_raw(path, project=project, name=name) as place:
        raw = place.relative_to(project).as_posix()
        config = _use_folder(params, name, {"data.raw": raw, **chosen})
        _check(config)
        tracked = track(project, place).relative_to(project.resolve())
    if place.is_dir() and (count := _count_files(place)) > MANY_FILES:
        say(
            f"  {count:,} files: DVC handles one archive much faster. Consider: tar -cf {name}.tar "
            f"-C {raw} . && dml data add {name}.tar --name {name}-packed"
        )
    say(f"  tracked       {raw} by DVC; keep its hash with: git add {tracked}")
    _hand_over(config, params, write=write)


def run_data_push(*, remote: str, everything: bool) -> None:
    """Uploads datasets to the DVC remote."""
    project = Path.cwd()
    target = read_remote(project, remote)
    count = push_data(project, remote=remote, everything=everything)
    done = f"{count:,} files sent" if count else "everything was there already"
    say(f"{target.name} ({target.shown_url}): {done}")


def run_data_pull(name: str, *, remote: str, everything: bool) -> None:
    """Downloads datasets from the DVC remote."""
    project = Path.cwd()
    source = read_remote(project, remote)
    paths = pull_data(project, name, remote=remote, everything=everything)
    say(f"{source.name} ({source.shown_url}): {', '.join(paths) or 'everything is here already'}")


def _use_folder(params: Path, name: str, chosen: dict[str, object]) -> TrialConfig:
    """The parameters of params.yaml with the dataset in the place of the former one."""
    layer = load_project_config(params).trial_params
    others = {key: value for key, value in layer.items() if not key.startswith("data.")}
    dataset = {"data.name": "folder", "data.alias": name, **chosen}
    return resolve_trial_config(others, dataset, source=f"{params} with this dataset")


def _check(config: TrialConfig) -> None:
    listing = list_images(config.data)
    records = sort_and_check(listing.records, dataset=config.data.folder_name)
    split = split_classes(records, config.data)
    say(
        f"{config.data.folder_name}: {len(records):,} images, {len(split.development):,} classes "
        f"to develop on, {len(split.test):,} held back for the test"
    )
    # Files of the same bytes only: equal pixels and look-alikes are found when they are packed.
    digests = [digest_record(record, root=listing.root) for record in records]
    images = [
        FoundImage(record.path, record.class_name, digest, content=digest)
        for record, digest in zip(records, digests, strict=True)
        if digest != UNREADABLE
    ]
    places = name_places(split)
    copies = find_copies(images, places)
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


def _hand_over(config: TrialConfig, params: Path, *, write: bool) -> None:
    flat = to_flat_dict(config)
    values = {key.removeprefix("data."): v for key, v in flat.items() if key.startswith("data.")}
    first = {key: values.pop(key) for key in ("name", "alias", "raw", "table")}
    if write:
        write_section(params, "data", first | values)
        say(f"  parameters    written to the section data of {params}")
    else:
        say(f"Put this in the place of the section data of {params}, or add --write:\n")
        say(render_section("data", first | values))
    say("next: dml prepare")
