import shutil

import pytest

from dml_core.data.prepared import open_development
from dml_core.training.checkpoint import save_checkpoint
from dml_core.training.trial import run_trial
from tests.references.tiny_trials import prepare_tiny, tiny_config

ARMS = {
    "anchor": {"loss__name": "proxy_anchor"},
    "nca": {"loss__name": "proxy_nca"},
    "triplet": {"loss__name": "triplet"},
}


@pytest.fixture(scope="session")
def winners(tmp_path_factory):
    """The winners' folder of a study with two proxy losses and one without proxies."""
    root = tmp_path_factory.mktemp("measured")
    prepare_tiny(root / "prepared")
    for arm, knobs in ARMS.items():
        for seed in (0, 3) if arm == "anchor" else (0,):
            config = tiny_config(root / "prepared", seed=seed, training__epochs=2, **knobs)
            path = root / "winners" / f"{arm}-seed{seed}" / "checkpoint.pt"
            run_trial(
                config,
                open_development(config.data),
                on_epoch_end=lambda _, state, path=path: save_checkpoint(state, path),
            )
    # No measure may look at the test classes, so they are away.
    shutil.rmtree(config.data.prepared_path / "test")
    return root / "winners"
