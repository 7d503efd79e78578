"""dml export: a trained model of a study, in a folder that needs nothing of this project."""

from pathlib import Path
from typing import Annotated

import typer

from flows.commands.terminal import (
    DEFAULT_PARAMS,
    ParamsOption,
    ProfileOption,
    SetOption,
    StudyArgument,
    say,
)

ArmOption = Annotated[
    str | None, typer.Option(help="Another arm than the recommended one.", metavar="ARM")
]
SeedOption = Annotated[
    int | None, typer.Option(help="Another seed than the best on validation.", min=0)
]
commands = typer.Typer()


@commands.command()
def export(
    study: StudyArgument,
    params: ParamsOption = DEFAULT_PARAMS,
    set_: SetOption = None,
    profile: ProfileOption = None,
    arm: ArmOption = None,
    seed: SeedOption = None,
    format_: Annotated[
        str, typer.Option("--format", help="pyfunc (MLflow), onnx or torch.")
    ] = "pyfunc",
    output: Annotated[
        Path | None, typer.Option(help="Folder to write; by default below results/STUDY/export.")
    ] = None,
) -> None:
    """Export a trained model with its preparation and a model card, for use without dml."""
    from tasks.export.formats import default_folder, export_model
    from tasks.export.winner import choose_model
    from tasks.step_progress import shown_step
    from tasks.study import StudyRequest, load_context

    request = StudyRequest(
        study=study, profile=profile, params=str(params), overrides=tuple(set_ or ())
    )
    chosen = choose_model(load_context(request), arm=arm, seed=seed)
    folder = output or default_folder(chosen, format=format_)
    with shown_step(f"exporting {chosen.name} as {format_}"):
        done = export_model(chosen, folder, format=format_)
    say(f"exported {chosen.name} of {request.folder_name} as {format_}")
    if done.onnx_difference is not None:
        say(f"checked with onnxruntime: within {done.onnx_difference:.1e} of torch")
    say(f"written to {done.folder}; its README.md says how to load it")
