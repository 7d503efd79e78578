"""dml losses: what can be minimised."""

import typing

from pydantic import BaseModel

from dml_core.config.losses import LossConfig
from flows.commands.terminal import say


def run_losses() -> None:
    """Prints every loss with its knobs, defaults and meanings."""
    for kind in _loss_configs():
        say(f"{kind.model_fields['name'].default}: {kind.__doc__}")
        for key, default, meaning in _knobs(kind, prefix="loss."):
            say(f"    {key} = {default}  {meaning}")
    say("Use one with: dml train --set loss.name=triplet --set loss.margin=0.1")


def _loss_configs() -> list[type[BaseModel]]:
    union = typing.get_args(LossConfig)[0]
    return [typing.get_args(tagged)[0] for tagged in typing.get_args(union)]


def _knobs(model: type[BaseModel], *, prefix: str) -> typing.Iterator[tuple[str, object, str]]:
    for name, field in model.model_fields.items():
        default = field.get_default(call_default_factory=True)
        if isinstance(default, BaseModel):
            yield from _knobs(type(default), prefix=f"{prefix}{name}.")
        elif name != "name":
            yield f"{prefix}{name}", default, " ".join((field.description or "").split())
