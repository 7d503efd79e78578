"""dml explain and dml losses: what the keys of params.yaml and of study files mean."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from flows.commands.terminal import DEFAULT_PARAMS, ParamsOption, say

if TYPE_CHECKING:
    from dml_core.studies.described_keys import DescribedKey

commands = typer.Typer()

KeyArgument = Annotated[
    str,
    typer.Argument(
        help="A key (loss.alpha), a section (loss), the end of a key (alpha), or study; "
        "none lists the sections."
    ),
]


@commands.command()
def explain(key: KeyArgument = "", params: ParamsOption = DEFAULT_PARAMS) -> None:
    """Say what a key means, its type, range and default, and its value in params.yaml."""
    from dml_core.studies.described_keys import STUDY_WORD, find_keys, list_sections

    if not key:
        for section, meaning in list_sections().items():
            say(f"{section:14s} {meaning}")
        say(f"{STUDY_WORD:14s} The keys of a study file.")
        say("Explain a section or a key with: dml explain loss, dml explain loss.alpha")
        return
    found, values = find_keys(key), _read_values(params)
    is_one = len({each.key for each in found}) == 1
    for each in found:
        if is_one:
            _explain_one(each, values, params)
        else:
            default = f" = {each.default}" if each.default else ""
            say(f"{_name(each)}{default}  {each.meaning}{_say_set(each, values)}")


@commands.command()
def losses() -> None:
    """List the losses with their knobs and defaults."""
    from dml_core.config.loading import chosen_sections
    from dml_core.studies.described_keys import list_keys_of_kind

    for name, kind in chosen_sections()["loss"].items():
        say(f"{name}: {kind.__doc__}")
        for each in list_keys_of_kind("loss", name):
            if each.default and each.key != "loss.name":
                say(f"    {each.key} = {each.default}  {each.meaning}")
    say("Use one with: dml train --set loss.name=triplet --set loss.margin=0.1")


def _read_values(params: Path) -> dict[str, Any]:
    """Returns the values of params.yaml by key; none outside of a project."""
    from dml_core.config import load_params

    return load_params(params) if params.exists() else {}


def _explain_one(each: "DescribedKey", values: Mapping[str, Any], params: Path) -> None:
    from dml_core.studies.described_keys import PARAMS_FILE, say_value

    say(_name(each))
    say(f"    {each.meaning}")
    say(f"    {each.say_values()}")
    if each.file != PARAMS_FILE:
        say(f"    set in {each.file}")
    elif (other := _find_other_kind(each, values)) is not None:
        say(f"    not in use: {params} has {other}")
    elif each.key in values:
        say(f"    {params} has {say_value(values[each.key])}")
    elif values:
        say(f"    {params} does not set it")


def _name(each: "DescribedKey") -> str:
    return f"{each.key} ({', '.join(each.kinds)})" if each.kinds else each.key


def _say_set(each: "DescribedKey", values: Mapping[str, Any]) -> str:
    """Returns the value of the file where it is not the default."""
    from dml_core.studies.described_keys import say_value

    if each.key not in values or _find_other_kind(each, values) is not None:
        return ""
    value = say_value(values[each.key])
    return f"  (set to {value})" if value != each.default else ""


def _find_other_kind(each: "DescribedKey", values: Mapping[str, Any]) -> str | None:
    """Returns the choice that leaves this key out, such as `loss.name=triplet`; None if none."""
    from dml_core.studies.described_keys import label_kind

    name_key = f"{each.key.partition('.')[0]}.name"
    chosen = values.get(name_key)
    is_left_out = (
        bool(each.kinds) and chosen is not None and label_kind(str(chosen)) not in each.kinds
    )
    return f"{name_key}={chosen}" if is_left_out else None
