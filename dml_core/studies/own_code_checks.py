"""Tries the code that a study names from elsewhere, before anything is trained with it."""

import numpy as np

from dml_core.config import ConfigError, TrialConfig
from dml_core.config.losses import OwnLossConfig, PmlConfig
from dml_core.config.training import OwnSamplerConfig
from dml_core.own_code import hash_sources, is_own
from dml_core.samplers import build_sampler
from dml_core.studies.arm_checks import list_corners
from dml_core.studies.resolved import ResolvedStudy
from dml_core.trials.key import list_own_names

_CLASSES = 8
"""Classes of a trial build; the true number is known after the data are prepared."""


def check_own_code(study: ResolvedStudy) -> None:
    """Builds and tries what a study names by `python:` or `pml:`: losses, samplers and networks.

    Imports the modules that the study names, and runs their code.

    Raises:
        ConfigError: with all problems: of the names and options, of values that are no scalar or
            not finite, and of losses without a gradient.
    """
    problems: dict[str, None] = {}
    for arm in study.arms:
        for corner in list_corners(arm.space):
            config = study.resolve_config(arm.name, corner, seed=study.seeds[0])
            problems |= dict.fromkeys(find_own_problems(config))
    if problems:
        raise ConfigError(study.name, list(problems))


def hash_own_code(study: ResolvedStudy) -> str:
    """Returns a hash over the own code that a study's arms name; empty if they name none."""
    configs = [study.arm_config(arm.name) for arm in study.arms]
    return hash_sources(name for config in configs for name in list_own_names(config))


def find_own_problems(config: TrialConfig) -> list[str]:
    """Returns why the code that a trial names from elsewhere cannot train, one sentence each."""
    # Late: these import torch, which a study of this project's own parts does not need.
    problems: list[str] = []
    if isinstance(config.loss, (OwnLossConfig, PmlConfig)):
        from dml_core.losses.own import find_loss_problems
        from dml_core.losses.registry import build_loss_from_config

        sizes = {"num_classes": _CLASSES, "embedding_dim": config.model.embedding_dim}
        try:
            problems += find_loss_problems(build_loss_from_config(config.loss, **sizes), **sizes)
        except ConfigError as error:
            problems += error.problems
    if isinstance(config.sampler, OwnSamplerConfig):
        problems += _find_sampler_problems(config)
    if is_own(config.model.backbone):
        from dml_core.models.building import build_model

        try:
            build_model(config, in_channels=1 if config.data.color == "gray" else 3)
        except ValueError as error:
            problems.append(str(error))
    return problems


def _find_sampler_problems(config: TrialConfig) -> list[str]:
    """Draws a batch from made-up labels: as many images as two batches of eight classes hold."""
    labels = np.arange(2 * config.sampler.batch_size) % _CLASSES
    continuous = np.zeros((len(labels), len(config.data.continuous_labels)))
    try:
        sampler = build_sampler(config.sampler, labels=labels, continuous=continuous, seed=0)
        if not len(sampler) or next(iter(sampler.epoch_batches(0)), None) is None:
            return [f"sampler.name={config.sampler.name} draws no batch of {len(labels)} images."]
    except ConfigError as error:
        return error.problems
    except Exception as error:
        where = f"on {len(labels)} images of {_CLASSES} classes"
        return [f"sampler.name={config.sampler.name} fails {where}: {str(error)[:300]}"]
    return []
