"""Tells people of a scheduled run that failed, by a block that they saved in Prefect."""

import logging
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dml_core.config.loading import load_project_config
from tasks.redaction import redact

if TYPE_CHECKING:
    from prefect.client.schemas.objects import FlowRun, State
    from prefect.flows import Flow

_MOST_LETTERS = 2000


def tell_failure(flow: "Flow[..., Any]", flow_run: "FlowRun", state: "State[Any]") -> None:
    """Sends a message where a scheduled run failed or crashed, and notify.block names a block.

    Prefect calls this when such a run ends. A message that cannot be sent is logged: the run has
    failed already, and why it did must not be hidden by another error.
    """
    if flow_run.deployment_id is None:
        return
    parameters = flow_run.parameters
    try:
        params = Path(str(parameters.get("params", "params.yaml")))
        block = load_project_config(params, parameters.get("overrides") or []).pipeline.notify.block
        if block:
            send(block, *make_message(parameters, flow_run.name, state))
    except Exception as error:
        logging.getLogger(__name__).warning("nobody was told of the failure: %s", error)


def make_message(parameters: dict[str, Any], run_name: str, state: "State[Any]") -> tuple[str, str]:
    """Returns the subject and the text of a message, without secrets."""
    studies = ", ".join(map(str, parameters.get("studies", [])))
    subject = f"dml: the scheduled run of {studies} {(state.name or 'failed').lower()}"
    reason = redact(state.message or "no reason was given")[:_MOST_LETTERS]
    return subject, f"{subject}\nrun: {run_name}\n{reason}"


def send(name: str, subject: str, text: str) -> None:
    """Sends a message by a saved block: one of Prefect's notification blocks, or a webhook.

    Args:
        name: type and name of the block, as webhook/team.
        subject: for those that have one, such as e-mails.
        text: the message.

    Raises:
        ValueError: where there is no such block, or it can send nothing.
    """
    from prefect.blocks.core import Block
    from prefect.utilities.asyncutils import run_coro_as_sync

    block: Any = Block.load(name)
    if hasattr(block, "notify"):
        block.notify(text, subject)
    elif hasattr(block, "call"):
        # A plain webhook posts what it is given; `text` is what chats show.
        answer = run_coro_as_sync(block.call({"subject": subject, "text": text}))
        answer.raise_for_status()
    else:
        raise ValueError(
            f"notify.block={name} is a {type(block).__name__}, which sends nothing. Name a webhook "
            "or one of Prefect's notification blocks."
        )
