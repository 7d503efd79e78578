"""dml losses: what can be minimised."""

import typing

from pydantic import BaseModel
from rich.table import Table

from dml_core.config.losses import LossConfig
from flows.commands.terminal import console


def run_losses() -> None:
    """Prints every loss with its knobs, defaults and meanings."""
    table = Table(show_lines=False)
    for heading in ("loss.name", "knob", "default", "meaning"):
        table.add_column(heading)
    for kind in _loss_configs():
        name = str(kind.model_fields["name"].default)
        table.add_row(name, "", "", (kind.__doc__ or "").splitlines()[0], style="bold")
        for knob, field in kind.model_fields.items():
            if knob != "name":
                default = field.default
                shown = default.model_dump() if isinstance(default, BaseModel) else default
                table.add_row("", f"loss.{knob}", str(shown), field.description or "")
    console.print(table)


def _loss_configs() -> list[type[BaseModel]]:
    union = typing.get_args(LossConfig)[0]
    return [typing.get_args(tagged)[0] for tagged in typing.get_args(union)]
