"""The licence of the weights that a model starts from, as far as their source states it."""

from dml_core.config import TrialConfig
from dml_core.models.weights import PACKAGES

_IMAGENET = (
    "They were trained on ImageNet, whose own terms allow non-commercial research and education; "
    "whether these terms extend to weights is disputed."
)
_OWN_DATA = "The licence of your images applies to what was learnt from them."


def describe_licence(config: TrialConfig) -> str:
    """Returns a paragraph on the licence of a model's weights.

    It repeats what the packages say of themselves and is no legal advice.
    """
    weights, backbone = config.model.weights, config.model.backbone
    if weights == "none":
        return f"The weights were trained from scratch in this study. {_OWN_DATA}"
    if package := PACKAGES.get(weights):
        source = f"the package {package.module}, {package.licence}"
        return f"Training started from the weights of {source}. {_IMAGENET} {_OWN_DATA}"
    if weights == "imagenet":
        source = _name_library(backbone)
        return f"Training started from the ImageNet weights of {source}. {_IMAGENET} {_OWN_DATA}"
    return (
        f"Training started from the weights in the file `{weights}`, whose licence is not known "
        f"here: ask its author. {_OWN_DATA}"
    )


def _name_library(backbone: str) -> str:
    library, _, name = backbone.partition(":")
    if library == "timm":
        return f"timm's {name}, {_read_timm_licence(name)}"
    if library == "torchvision":
        return f"torchvision's {name}, whose code is under the BSD 3-Clause License"
    return backbone


def _read_timm_licence(name: str) -> str:
    import timm

    found = timm.models.get_pretrained_cfg(name, allow_unregistered=True)
    licence = getattr(found, "license", None)
    return f"with the licence {licence}" if licence else "whose licence timm does not state"
