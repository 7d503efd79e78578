"""Describes a registered model in MLflow: what it is, its scores, and the data behind them.

MLflow's Models tab shows the metrics of a logged model, and its Datasets tab the inputs of runs.
"""

import json
import time
from typing import TYPE_CHECKING, Any

from tasks.model_facts import DataFacts, ModelFacts
from tasks.tracking.address import Tracking
from tasks.tracking.identity import escape_markdown, keep_numbers, to_name, to_tags
from tasks.tracking.model import MODEL_TAG, TAKES, RegisteredWinner
from tasks.tracking.runs import MAX_ENTRIES

if TYPE_CHECKING:
    from mlflow.entities import DatasetInput
    from mlflow.tracking import MlflowClient

CONTEXT_TAG = "mlflow.data.context"
DIGEST_LENGTH = 36
"""MLflow's limit for the digest of a dataset."""
NUM_SHOWN_SCORES = 8
_COLON = "&#58;"


def describe_version(
    tracking: Tracking, winner: RegisteredWinner, facts: ModelFacts, *, run_id: str
) -> None:
    """Adds description, tags, datasets and scores to a registered version; twice is safe.

    Args:
        tracking: the store.
        winner: the registered version.
        facts: of the model.
        run_id: the run of its training, which gets the datasets.
    """
    client = tracking.client()
    client.update_registered_model(winner.name, description=_say_what_it_is(facts))
    client.update_model_version(
        winner.name, winner.version, description=write_description(winner, facts)
    )
    tags = {"arm": facts.arm, "seed": facts.seed, "data_hash": facts.data.content_hash}
    tags |= {f"test.{score.metric}": score.value for score in facts.scores[:NUM_SHOWN_SCORES]}
    named = to_tags({f"dml.{to_name(key)}": value for key, value in tags.items()})
    for key, value in named.items():
        client.set_model_version_tag(winner.name, winner.version, key, value)
    client.log_inputs(run_id, datasets=_list_datasets(facts.data))
    model_id = client.get_model_version(winner.name, winner.version).tags.get(MODEL_TAG)
    if model_id:
        _log_scores(client, model_id, facts, run_id=run_id)


def write_description(winner: RegisteredWinner, facts: ModelFacts) -> str:
    """Returns a version's description in Markdown; texts of the study appear literally."""
    lines = [
        _say_what_it_is(facts),
        "",
        f"Arm **{_escape(facts.arm)}**, seed {facts.seed}.",
        "",
    ]
    if facts.scores:
        lines += ["| test metric | this model | mean over the seeds |", "|---|---|---|"]
        lines += [
            f"| {score.metric} | {score.shown_value} | {score.shown_mean} |"
            for score in facts.scores[:NUM_SHOWN_SCORES]
        ]
        lines.append("")
    lines.append(f"Data: {_escape(facts.data.name)}, hash `{facts.data.content_hash or 'unknown'}`")
    lines += ["", "| setting | value |", "|---|---|"]
    lines += [f"| {key} | {_escape(str(value))} |" for key, value in facts.settings.items()]
    lines += [
        "",
        "```python",
        f'model = mlflow.pyfunc.load_model("models:/{winner.name}/{winner.version}")',
        'embeddings = model.predict(["photo.jpg"])',
        "```",
        "",
        TAKES,
    ]
    return "\n".join(lines)


def _say_what_it_is(facts: ModelFacts) -> str:
    question = _escape(facts.question)
    return f"Image embeddings: the winner of the study {_escape(facts.study)}. {question}"


def _escape(text: str) -> str:
    return escape_markdown(text, colon=_COLON)


def _list_datasets(data: DataFacts) -> "list[DatasetInput]":
    from mlflow.entities import Dataset, DatasetInput, InputTag

    schema = {
        "mlflow_colspec": [
            {"type": "binary", "name": "image", "required": True},
            {"type": "string", "name": "class", "required": True},
        ]
    }
    profile = {**data.counts, "content_hash": data.content_hash, "split_hash": data.split_hash}
    # One dataset a split: MLflow keeps a dataset once for each run.
    return [
        DatasetInput(
            Dataset(
                name=_name_split(data, split),
                digest=_make_digest(data),
                source_type="local",
                source=json.dumps({"uri": data.name}),
                schema=json.dumps(schema),
                profile=json.dumps(profile),
            ),
            tags=[InputTag(CONTEXT_TAG, context)],
        )
        for split, context in (("development", "training"), ("test", "testing"))
    ]


def _name_split(data: DataFacts, split: str) -> str:
    return f"{data.name} {split}"


def _make_digest(data: DataFacts) -> str:
    return data.content_hash[:DIGEST_LENGTH] or "unknown"


def _log_scores(client: "MlflowClient", model_id: str, facts: ModelFacts, *, run_id: str) -> None:
    """Adds the test scores to the logged model, with the dataset that they were computed on."""
    from mlflow.entities import Metric

    there = {metric.key for metric in client.get_logged_model(model_id).metrics or []}
    wanted = keep_numbers({f"test.{score.metric}": score.value for score in facts.scores})
    missing = {name: value for name, value in wanted.items() if name not in there}
    if not missing:
        return
    time_ms = _find_time(client, run_id, next(iter(missing)))
    common: dict[str, Any] = {
        "model_id": model_id,
        "run_id": run_id,
        "dataset_name": _name_split(facts.data, "test"),
        "dataset_digest": _make_digest(facts.data),
    }
    listed = [Metric(name, value, time_ms, 0, **common) for name, value in missing.items()]
    for start in range(0, len(listed), MAX_ENTRIES):
        client.log_batch(run_id, metrics=listed[start : start + MAX_ENTRIES])


def _find_time(client: "MlflowClient", run_id: str, metric: str) -> int:
    """Returns when the run got a metric: the same time again does not add to its history."""
    history = client.get_metric_history(run_id, metric)
    return int(history[-1].timestamp) if history else int(1000 * time.time())
