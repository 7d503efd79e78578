"""What a study's models are compared with: bare features of pretrained networks, or pixels."""

from collections.abc import Iterable

from dml_core.config import TrialConfig

BARE_FEATURES = "bare features"
PIXELS = "pixels"


def list_untrained(configs: Iterable[TrialConfig]) -> dict[str, TrialConfig]:
    """Returns what to compare the models of these configurations with, by name.

    `bare features` are those of pretrained networks, one entry for each network; where no
    configuration has pretrained weights, `pixels` are compared instead. Clustering and changed
    images are left out, since they would take longer than the rest, and so are prefixes, which mean
    nothing for vectors that were not trained for this study.
    """
    networks: dict[tuple[str, ...], TrialConfig] = {}
    for config in configs:
        kind = (config.model.backbone, config.model.weights, config.model.pooling)
        networks.setdefault((*map(str, kind), str(config.input_size_px)), config)
    pretrained = [each for each in networks.values() if each.model.weights != "none"]
    found = {}
    for config in pretrained or list(networks.values())[:1]:
        left_out = {"clustering": False, "truncate_at": ()}
        quick = config.evaluation.model_copy(update=left_out)
        name = BARE_FEATURES if pretrained else PIXELS
        if len(pretrained) > 1:
            name += f" of {config.model.backbone}, {config.input_size_px} px"
        found[name] = config.model_copy(update={"evaluation": quick})
    return found
