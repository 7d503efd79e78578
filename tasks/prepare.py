"""Prepares the datasets that a study's trials read."""

import logging
from functools import partial
from typing import Any

from prefect import task

from dml_core.config.pipeline import RayConfig
from tasks.guardian import guarded_folder
from tasks.machine_faults import is_momentary
from tasks.step_progress import shown_step

LOGGER = logging.getLogger(__name__)


# No time-out: the time depends on the data, and an interrupted preparation starts over.
@task(retries=2, retry_delay_seconds=[2, 10], retry_condition_fn=is_momentary)
def prepare_data(config: Any, ray: RayConfig) -> dict[str, Any]:
    """Packs one dataset; running it twice is safe: unchanged input is not packed again.

    A retry helps against a network disk that was briefly unavailable, not against bad data.

    Args:
        config: the dataset's section.
        ray: the cluster whose nodes read the images, if it is not on this machine.
    """
    # Late: the readers of all formats take half a second to import, and data are rarely stale.
    from dml_core.data.duplicates import describe_duplicates
    from dml_core.data.prepare import prepare_dataset
    from dml_core.data.sources.registry import list_images
    from tasks.prepare_on_nodes import pack_on_nodes
    from tasks.versioning.restoring import restore_before_preparing

    # Without the guardian, the processes of a pool outlive a killed process.
    guarded_folder()
    restore_before_preparing(config)
    with shown_step(f"preparing {config.folder_name}") as progress:
        info = prepare_dataset(
            list_images(config),
            config,
            on_progress=progress.count,
            map_files=partial(pack_on_nodes, config=ray),
        )
    duplicates = describe_duplicates(info.duplicates)
    for line in duplicates:
        LOGGER.warning("%s: %s; listed in %s", config.folder_name, line, config.prepared_path)
    return {
        "dataset": config.folder_name,
        "content_hash": info.content_hash,
        "split_hash": info.split_hash,
        "development_images": info.num_development_images,
        "test_images": info.num_test_images,
        "refused": info.num_refused,
        "duplicates": "; ".join(duplicates) or "none",
    }
