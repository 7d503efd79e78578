"""A small drawn dataset in a temporary folder, for benchmarks that train."""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from dml_core.config import TrialConfig, resolve_trial_config
from dml_core.data.prepare import prepare_dataset
from dml_core.data.sources.registry import list_images


@contextmanager
def drawn_trial(**knobs: Any) -> Iterator[TrialConfig]:
    """Yields the configuration of a trial on temporary glyphs.

    Args:
        knobs: parameters by dotted key, over the defaults.
    """
    with tempfile.TemporaryDirectory(prefix="dml-bench-") as folder:
        config = resolve_trial_config(
            {"data.prepared_root": str(Path(folder) / "prepared"), **knobs}
        )
        prepare_dataset(list_images(config.data), config.data)
        yield config
