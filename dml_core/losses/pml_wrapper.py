"""Losses of pytorch-metric-learning, by the name `pml:<ClassName>`."""

import inspect
from collections.abc import Callable
from types import ModuleType
from typing import Any

from torch import Tensor, nn

from dml_core.config.losses import PmlConfig
from dml_core.config.problems import ConfigError, suggest
from dml_core.losses.base import MetricLoss, at_least_float32

PREFIX = "pml:"
_NAMED = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


class PmlLoss(MetricLoss):
    """Any loss class of pytorch-metric-learning, with the formula and defaults of that package.

    Embeddings are passed unchanged: most of those losses normalize them. A batch without valid
    pairs gives the package's zero, which has a graph.
    """

    config_class = PmlConfig
    takes_sizes = True
    config: PmlConfig

    def __init__(self, **arguments: Any) -> None:
        super().__init__(**arguments)
        config, sizes = self.config, self.sizes
        assert sizes is not None
        loss_class = _find_class(config.name.removeprefix(PREFIX))
        given = {"num_classes": sizes.num_classes, "embedding_size": sizes.embedding_dim}
        known = _constructor_arguments(loss_class)
        problems = [
            f"loss.options.{name} is not an argument of {config.name}.{suggest(name, known)}"
            for name in config.options
            if name not in known
        ]
        if problems:
            raise ConfigError("loss.options", problems)
        passed = {name: value for name, value in given.items() if name in known}
        self.loss = _construct(loss_class, {**passed, **config.options}, name=config.name)

    def compute(self, embeddings: Tensor, labels: Tensor, anchors: Tensor | None) -> Tensor:
        """Returns the package's loss, computed in float32 or better."""
        value: Tensor = self.loss(at_least_float32(embeddings), labels)
        return value


def _import_losses() -> ModuleType:
    try:
        from pytorch_metric_learning import losses
    except ImportError as error:
        problem = (
            "loss.name starts with pml:, which needs the package pytorch-metric-learning. It "
            f"cannot be imported ({error}). Run: pip install pytorch-metric-learning"
        )
        raise ConfigError("loss.name", [problem]) from error
    module: ModuleType = losses
    return module


def _find_class(name: str) -> type[nn.Module]:
    module = _import_losses()
    known = {
        key: value
        for key, value in vars(module).items()
        if inspect.isclass(value) and issubclass(value, nn.Module) and key.endswith("Loss")
    }
    if name not in known:
        problem = (
            f"loss.name must be pml: followed by a loss class of pytorch-metric-learning. "
            f"Got {PREFIX}{name}.{suggest(name, known)}"
        )
        raise ConfigError("loss.name", [problem])
    return known[name]


def _constructor_arguments(loss_class: type[nn.Module]) -> list[str]:
    """Returns the argument names of the constructor, including those of base classes."""
    names: list[str] = []
    for base in loss_class.__mro__:
        if base is nn.Module:
            break
        if "__init__" in vars(base):
            # Classes of that package pass unknown keywords to their base classes.
            parameters = inspect.signature(vars(base)["__init__"]).parameters.values()
            names += [each.name for each in parameters if each.kind in _NAMED]
    return sorted(set(names) - {"self"})


def _construct(
    loss_class: Callable[..., nn.Module], arguments: dict[str, object], *, name: str
) -> nn.Module:
    try:
        return loss_class(**arguments)
    except (TypeError, ValueError, AssertionError, AttributeError) as error:
        shown = ", ".join(f"{key}={value!r}" for key, value in arguments.items())
        problem = (
            f"{name} cannot be built from these arguments: {error}. Got {shown or 'none'}. "
            "Change loss.options, or choose a loss with plain values as arguments."
        )
        raise ConfigError("loss.options", [problem]) from error
