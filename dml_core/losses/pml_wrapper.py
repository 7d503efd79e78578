"""Losses of pytorch-metric-learning, by the name `pml:<ClassName>`, with their parts as options."""

import importlib
import inspect
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from dml_core.config.losses import PmlConfig
from dml_core.config.problems import ConfigError, suggest
from dml_core.losses.base import MetricLoss, at_least_float32

PREFIX = "pml:"
MEMORY = "CrossBatchMemory"
_PACKAGE = "pytorch_metric_learning"
_NAMED = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
_PARTS = {
    "distance": "distances",
    "reducer": "reducers",
    "embedding_regularizer": "regularizers",
    "weight_regularizer": "regularizers",
    "miner": "miners",
    "loss": "losses",
}
"""Arguments that are objects, and the module of that package with their classes."""


class PmlLoss(MetricLoss):
    """Any loss class of pytorch-metric-learning, with the formula and defaults of that package.

    Embeddings are passed unchanged: most of those losses normalize them. A batch without valid
    pairs gives the package's zero, which has a graph. An option that is an object of that package
    is a mapping with its class as `name`, such as `distance: {name: LpDistance, p: 1}`. Every loss
    takes a `miner`. `pml:CrossBatchMemory` takes a `loss`; its queue resumes bit for bit.
    With `matryoshka`, each length has its own instance of the class, because the parameters of a
    foreign class cannot be cut.
    """

    config_class = PmlConfig
    takes_sizes = True
    config: PmlConfig
    queue: Tensor
    """Of a memory: (2,) its next row, and whether it is full."""

    def __init__(self, **arguments: Any) -> None:
        super().__init__(**arguments)
        config, sizes = self.config, self.sizes
        assert sizes is not None
        name, options = config.name.removeprefix(PREFIX), dict(config.options)
        self.has_memory = name == MEMORY
        # The memory calls its miner itself.
        mined = {} if self.has_memory else {k: options.pop(k) for k in ["miner"] if k in options}
        problems: list[str] = []
        if self.has_memory and len(config.matryoshka) > 1:
            problems.append(
                f"loss.matryoshka cannot cut the memory of {config.name}, which holds whole "
                f"embeddings. Got {list(config.matryoshka)}. Choose a loss that has loss.memory."
            )

        def build(length: int) -> nn.Module | None:
            given = {"num_classes": sizes.num_classes, "embedding_size": length}
            key = "loss.options"
            return _build("losses", name, options, given=given, key=key, problems=problems)

        loss = build(sizes.embedding_dim)
        given = {"num_classes": sizes.num_classes, "embedding_size": sizes.embedding_dim}
        parts = _build_parts(mined, given=given, key="loss.options", problems=problems)
        if problems or loss is None:
            raise ConfigError("loss", problems)
        self.loss, self.miner = loss, parts.get("miner")
        # Those of other lengths can be built if this one can.
        shorter = {str(length): build(length) for length in config.matryoshka[:-1]}
        self.shorter = nn.ModuleDict({n: each for n, each in shorter.items() if each is not None})
        if self.has_memory:
            # That package keeps these two as plain attributes, which no checkpoint would hold.
            self.register_buffer("queue", torch.zeros(2, dtype=torch.int64))

    def compute(self, embeddings: Tensor, labels: Tensor, anchors: Tensor | None) -> Tensor:
        """Returns the package's loss, computed in float32 or better."""
        exact = at_least_float32(embeddings)
        if self.has_memory:
            return self._compute_with_memory(exact, labels)
        mined = [] if self.miner is None else [self.miner(exact, labels)]
        value: Tensor = self.pick_instance(exact)(exact, labels, *mined)
        return value

    def _compute_with_memory(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        memory: Any = self.loss
        memory.queue_idx, memory.has_been_filled = int(self.queue[0]), bool(self.queue[1])
        value: Tensor = memory(embeddings, labels)
        self.queue = self.queue.new_tensor([memory.queue_idx, memory.has_been_filled])
        return value


def _build(
    module: str,
    name: str,
    options: Mapping[str, Any],
    *,
    given: Mapping[str, int],
    key: str,
    problems: list[str],
) -> nn.Module | None:
    """Returns an object of the package with its parts; adds to `problems` why it cannot.

    Args:
        module: the package's module with the class.
        name: the class.
        options: its arguments; parts are names or mappings with a name.
        given: arguments that are passed where the class takes them.
        key: the dotted key of the options.
        problems: gets a sentence for each problem.
    """
    found = _find_class(module, name, key=key, problems=problems)
    if found is None:
        return None
    known, before = _constructor_arguments(found), len(problems)
    problems += [
        f"{key}.{option} is not an argument of {PREFIX}{name}.{suggest(option, known)}"
        for option in options
        if option not in known
    ]
    parts = _build_parts(options, given=given, key=key, problems=problems)
    if len(problems) > before:
        return None
    passed = {argument: value for argument, value in given.items() if argument in known}
    arguments = {**passed, **options, **parts}
    try:
        return found(**arguments)
    except Exception as error:
        shown = ", ".join(f"{argument}={value!r}" for argument, value in arguments.items())
        problems.append(
            f"{PREFIX}{name} cannot be built from these arguments: {error}. Got {shown or 'none'}. "
            f"Change {key}."
        )
        return None


def _build_parts(
    options: Mapping[str, Any], *, given: Mapping[str, int], key: str, problems: list[str]
) -> dict[str, nn.Module]:
    """Returns the objects among the options, by argument."""
    parts = {}
    for option, module in _PARTS.items():
        value = options.get(option)
        if value is None:
            continue
        chosen = {"name": value} if isinstance(value, str) else value
        if not isinstance(chosen, Mapping) or not isinstance(chosen.get("name"), str):
            problems.append(
                f"{key}.{option} must be a class of {_PACKAGE}.{module}, or a mapping with its "
                f"name and arguments. Got {value!r}."
            )
            continue
        own = {name: inner for name, inner in chosen.items() if name != "name"}
        place = f"{key}.{option}"
        part = _build(module, chosen["name"], own, given=given, key=place, problems=problems)
        if part is not None:
            parts[option] = part
    return parts


def _import_module(name: str) -> ModuleType:
    try:
        return importlib.import_module(f"{_PACKAGE}.{name}")
    except ImportError as error:
        problem = (
            "loss.name starts with pml:, which needs the package pytorch-metric-learning. It "
            f"cannot be imported ({error}). Run: pip install pytorch-metric-learning"
        )
        raise ConfigError("loss.name", [problem]) from error


def _find_class(
    module: str, name: str, *, key: str, problems: list[str]
) -> Callable[..., nn.Module] | None:
    known = {
        each: value
        for each, value in vars(_import_module(module)).items()
        if inspect.isclass(value) and issubclass(value, nn.Module) and not each.startswith("Base")
    }
    if module == "losses":
        known = {n: value for n, value in known.items() if n.endswith("Loss") or n == MEMORY}
    if name in known:
        return known[name]
    if key == "loss.options":
        rule = "loss.name must be pml: followed by a loss class of pytorch-metric-learning"
        problems.append(f"{rule}. Got {PREFIX}{name}.{suggest(name, known)}")
    else:
        rule = f"{key}.name must be a class of {_PACKAGE}.{module}"
        problems.append(f"{rule}. Got {name!r}.{suggest(name, known)}")
    return None


def _constructor_arguments(found: Callable[..., nn.Module]) -> list[str]:
    """Returns the argument names of the constructor, including those of base classes."""
    assert isinstance(found, type)
    names: list[str] = []
    for base in found.__mro__:
        if base is nn.Module:
            break
        if "__init__" in vars(base):
            # Classes of that package pass unknown keywords to their base classes.
            parameters = inspect.signature(vars(base)["__init__"]).parameters.values()
            names += [each.name for each in parameters if each.kind in _NAMED]
    return sorted(set(names) - {"self"})
