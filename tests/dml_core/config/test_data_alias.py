import typing

import pytest

from dml_core.config import ConfigError, resolve_trial_config
from dml_core.config.data import DATASET_NAMES, DataConfig, OwnData


def test_the_default_alias_of_every_dataset_is_its_name():
    tagged = typing.get_args(typing.get_args(DataConfig)[0])
    kinds = [typing.get_args(each)[0] for each in tagged]
    # The name of own code is no name of a folder.
    kinds.remove(OwnData)
    assert {kind.model_fields["name"].default for kind in kinds} == DATASET_NAMES
    assert all(kind().folder_name == kind().name for kind in kinds)


def test_choosing_another_dataset_drops_the_former_ones_alias():
    config = resolve_trial_config({"data.alias": "mine"}, {"data.name": "cub200"})
    assert config.data.folder_name == "cub200"


def test_an_alias_left_over_from_another_dataset_is_refused():
    with pytest.raises(ConfigError, match=r"'cub200' with alias 'glyphs'.*data\.alias: cub200"):
        resolve_trial_config({"data.name": "cub200", "data.alias": "glyphs"})
