"""The configuration: every key with its meaning, unit, range and default."""

from dml_core.config.loading import (
    load_params,
    load_trial_config,
    parse_overrides,
    resolve_trial_config,
)
from dml_core.config.problems import ConfigError
from dml_core.config.trial import TrialConfig

__all__ = [
    "ConfigError",
    "TrialConfig",
    "load_params",
    "load_trial_config",
    "parse_overrides",
    "resolve_trial_config",
]
