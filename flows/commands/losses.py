"""dml losses: the losses and their knobs."""

import typing

import typer

from flows.commands.terminal import say

if typing.TYPE_CHECKING:
    from pydantic import BaseModel

commands = typer.Typer()


@commands.command()
def losses() -> None:
    """List the losses with their knobs, ranges and defaults."""
    from dml_core.config.losses import LossConfig

    union = typing.get_args(LossConfig)[0]
    for tagged in typing.get_args(union):
        kind = typing.get_args(tagged)[0]
        say(f"{kind.model_fields['name'].default}: {kind.__doc__}")
        for key, default, meaning in _list_knobs(kind, prefix="loss."):
            say(f"    {key} = {default}  {meaning}")
    say("Use one with: dml train --set loss.name=triplet --set loss.margin=0.1")


def _list_knobs(
    model: "type[BaseModel]", *, prefix: str
) -> typing.Iterator[tuple[str, object, str]]:
    from pydantic import BaseModel

    for name, field in model.model_fields.items():
        default = field.get_default(call_default_factory=True)
        if isinstance(default, BaseModel):
            yield from _list_knobs(type(default), prefix=f"{prefix}{name}.")
        elif name != "name":
            yield f"{prefix}{name}", default, " ".join((field.description or "").split())
