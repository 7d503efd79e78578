"""dml train: one model, from the parameters to a checkpoint."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from flows.commands.terminal import DEFAULT_PARAMS, ParamsOption, SetOption, say

if TYPE_CHECKING:
    from dml_core.config import TrialConfig
    from dml_core.data.prepared_info import PreparedInfo
    from dml_core.training.checkpoint import Checkpoint
    from dml_core.training.report import EpochReport, TrialResult

commands = typer.Typer()


@commands.command()
def train(
    params: ParamsOption = DEFAULT_PARAMS,
    set_: SetOption = None,
    output: Annotated[
        Path | None, typer.Option(help="Folder of the run; by default named by its parameters.")
    ] = None,
) -> None:
    """Train one model; the same command again resumes it."""
    from dml_core.config import ConfigError, load_trial_config
    from dml_core.data.prepared import open_development
    from dml_core.process_memory import prepare_memory
    from dml_core.studies.own_code_checks import find_own_problems
    from dml_core.training.ddp_local import local_worker_group
    from dml_core.training.in_folder import train_in_folder
    from dml_core.trials.journal import read_epochs
    from tasks.versioning.restoring import ensure_whole

    prepare_memory()
    config = load_trial_config(params, set_ or [])
    if problems := find_own_problems(config):
        raise ConfigError("loss", problems)
    ensure_whole(config.data)
    data = open_development(config.data)
    folder = output or _default_folder(config, data.info)
    say(
        f"{config.loss.name} on {config.data.folder_name}: "
        f"{len(data.train):,} training images of {data.train.num_classes} classes, "
        f"{len(data.validation):,} validation images of {data.validation.num_classes} classes"
    )
    if done := read_epochs(folder):
        say(f"resuming after epoch {done[-1]['epoch']} of {config.training.epochs}")
    with local_worker_group(config, folder) as group:
        result = train_in_folder(
            config, data, folder, on_epoch_end=_print_epoch, on_message=say, group=group
        )
    _print_result(result, folder)
    if result.outcome in ("diverged", "collapsed"):
        raise SystemExit(1)


def _default_folder(config: "TrialConfig", data: "PreparedInfo") -> Path:
    """Returns the run's folder, named by loss, dataset and the beginning of the trial's key."""
    from dml_core.devices import choose_device
    from dml_core.trials.key import compute_key, own_parts

    version = f"{data.content_hash}/{data.split_hash}"
    parts = own_parts(config, data=version, device=choose_device(config.training.device))
    name = config.loss.name.replace(":", "_")
    return Path("results") / "train" / f"{name}-{config.data.folder_name}-{compute_key(parts)[:8]}"


def _print_epoch(report: "EpochReport", _: "Checkpoint") -> None:
    scores = "  ".join(
        f"{name} {value:.4f}"
        for name, value in report.validation.items()
        if name in ("recall_at_1", "map_at_r") or name.startswith("ndcg_at_10")
    )
    active = "" if report.active_fraction is None else f"  active {report.active_fraction:.2f}"
    say(
        f"epoch {report.epoch:3d}/{report.num_epochs}  loss {report.train_loss:.4f}{active}  "
        f"{scores}  {report.images_per_second:,.0f} images/s",
    )


def _print_result(result: "TrialResult", folder: Path) -> None:
    from dml_core.training.checkpoint import checkpoint_path
    from dml_core.trials.journal import read_epochs

    if result.outcome != "finished":
        say(f"{result.outcome}: {result.reason}")
    epochs = {epoch["epoch"]: epoch for epoch in read_epochs(folder)}
    if best := epochs.get(result.best_epoch):
        listed = ", ".join(
            f"{name} {value:.4f}"
            for name, value in best["validation"].items()
            if not name.startswith("num_")
        )
        say(f"validation, best epoch {result.best_epoch}: {listed}")
    newest = checkpoint_path(folder / "checkpoints", result.epoch)
    say(f"checkpoint: {newest if newest.exists() else folder / 'checkpoints'}")
    say(f"next: dml evaluate {folder}")
