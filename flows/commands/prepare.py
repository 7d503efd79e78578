"""dml prepare: from raw images to the packed dataset."""

import time
from typing import TYPE_CHECKING, Annotated

import typer

from flows.commands.terminal import DEFAULT_PARAMS, ParamsOption, ProfileOption, SetOption, say

if TYPE_CHECKING:
    from dml_core.config.data import DataBase
    from dml_core.data.prepared_info import PreparedInfo

commands = typer.Typer()


@commands.command()
def prepare(
    study: Annotated[
        str | None, typer.Argument(help="A study: its datasets instead of that of params.yaml.")
    ] = None,
    params: ParamsOption = DEFAULT_PARAMS,
    set_: SetOption = None,
    profile: ProfileOption = None,
    workers: Annotated[int, typer.Option(help="Processes; 0 takes all cores.", min=0)] = 0,
) -> None:
    """Pack a dataset for training: read, check, resize, split, hash."""
    from dml_core.config import load_trial_config
    from tasks.guardian import guarded_folder
    from tasks.study import StudyRequest, load_context

    if study is None:
        if profile:
            raise ValueError("--profile is one of a study, which is missing. Name it first.")
        datasets = [load_trial_config(params, set_ or []).data]
    else:
        request = StudyRequest(
            study=study, profile=profile, params=str(params), overrides=tuple(set_ or ())
        )
        datasets = list(load_context(request).datasets)
    # The processes of a pool would outlive a killed command.
    guarded_folder()
    for config in datasets:
        _prepare(config, workers)


def _prepare(config: "DataBase", workers: int) -> None:
    from dml_core.data.prepare import prepare_dataset
    from dml_core.data.sources.registry import list_images
    from tasks.step_progress import shown_step
    from tasks.versioning.restoring import restore_before_preparing

    restore_before_preparing(config)
    started = time.perf_counter()
    with shown_step(f"preparing {config.folder_name}") as progress:
        listing = list_images(config)
        info = prepare_dataset(listing, config, on_progress=progress.count, workers=workers or None)
    _print_summary(config, info, seconds=time.perf_counter() - started)


def _print_summary(config: "DataBase", info: "PreparedInfo", *, seconds: float) -> None:
    from dml_core.data.duplicates import describe_duplicates

    say(
        f"{config.folder_name}: {info.num_development_images:,} images of "
        f"{info.num_development_classes:,} classes to develop on, {info.num_test_images:,} of "
        f"{info.num_test_classes:,} held back for the test, in {seconds:.1f} s"
    )
    say(f"  folder        {config.prepared_path}")
    say(f"  content hash  {info.content_hash}")
    say(f"  split hash    {info.split_hash}")
    if info.num_refused:
        say(f"  refused       {info.num_refused} images, see refused.csv there")
    if duplicates := describe_duplicates(info.duplicates):
        for line in duplicates:
            say(f"  duplicates    {line}")
        say("                listed in duplicates.csv, class names in dataset.json there")
    if info.single_image_classes:
        names = ", ".join(info.single_image_classes[:5])
        say(f"  single image  {len(info.single_image_classes)} classes have one image ({names})")
