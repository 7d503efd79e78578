"""What a plan needs of disk and memory, from the sizes of its networks."""

from dataclasses import dataclass

from dml_core.config import TrialConfig
from dml_core.config.loading import to_flat_dict
from dml_core.data.prepared_info import load_info
from dml_core.studies.cost import sum_cost
from dml_core.studies.gpu_hours import OFFICIAL_IMAGES
from tasks.study import StudyContext, is_prepared

BASE_MEMORY = 900 * 1024**2
"""Of a trial's process with torch and Ray loaded, measured; its batches come on top."""
_NUMBER_BYTES = 4
_OPTIMIZER_NUMBERS = {"adamw": 2, "sgd": 1}
"""Numbers that an optimiser keeps for each weight."""
_DECISIVE = ("model", "trunk", "loss", "optimizer", "augmentation", "data")


@dataclass(frozen=True)
class PlanNeeds:
    """Bytes, at the most for the disk and at the least for the memory."""

    num_trained: int
    checkpoint_bytes: int
    """Of the largest arm."""
    trials_bytes: int
    """Of all checkpoints that trials keep, and of the winners' copies in results and DVC."""
    data_bytes: int
    """Of datasets that have yet to be prepared, and of their copies in DVC's cache."""
    memory_bytes: int
    """Of one trial."""

    @property
    def disk_bytes(self) -> int:
        """Everything that goes to the disk."""
        return self.trials_bytes + self.data_bytes


def estimate_needs(context: StudyContext) -> PlanNeeds:
    """Returns what a study needs, were all its trials trained."""
    study = context.study
    sizes: dict[tuple[object, ...], int] = {}
    trials, largest = 0, 0
    for arm in study.arms:
        config = study.arm_config(arm.name)
        kind = tuple(
            (k, str(v)) for k, v in to_flat_dict(config).items() if k.split(".")[0] in _DECISIVE
        )
        if kind not in sizes:
            sizes[kind] = measure_checkpoint(config)
        size = sizes[kind]
        tries = study.trials_per_arm * study.folds if arm.space else 0
        kept = (tries + len(study.seeds)) * _count_kept(config)
        # A winner is copied to the results, and from there to DVC's cache.
        trials += (kept + 2 * len(study.seeds)) * size
        largest = max(largest, size)
    return PlanNeeds(
        num_trained=sum_cost(
            study, dict.fromkeys((arm.name for arm in study.arms), 0.0)
        ).num_trained,
        checkpoint_bytes=largest,
        trials_bytes=trials,
        data_bytes=sum(_measure_data(context)),
        memory_bytes=BASE_MEMORY + largest,
    )


def measure_checkpoint(config: TrialConfig) -> int:
    """Returns the bytes of a checkpoint: weights, the best ones, and the optimiser's numbers."""
    import torch

    from dml_core.losses.registry import build_loss_from_config
    from dml_core.models.building import build_embedding_model

    # On the device meta tensors have sizes and no content, so that nothing is computed or loaded.
    # It takes seconds to get ready, and the small network less than that to make.
    with torch.device("cpu" if config.model.backbone == "convnet" else "meta"):
        model = build_embedding_model(
            config.model.model_copy(update={"weights": "none"}),
            train=config.trunk.train,
            in_channels=1 if config.data.color == "gray" else 3,
            input_size_px=config.input_size_px,
            normalize=config.normalizes_embeddings,
        )
        loss = build_loss_from_config(
            config.loss,
            num_classes=_count_classes(config),
            embedding_dim=config.model.embedding_dim,
        )
    own = _OPTIMIZER_NUMBERS[config.optimizer.name]
    everything = sum(tensor.numel() for tensor in model.state_dict().values())
    trained = sum(p.numel() for p in model.parameters() if p.requires_grad)
    proxies = sum(p.numel() for p in loss.parameters())
    return _NUMBER_BYTES * (everything + trained * (1 + own) + proxies * (1 + own))


def _count_kept(config: TrialConfig) -> int:
    training = config.training
    return min(training.keep_checkpoints, -(-training.epochs // training.checkpoint_every))


def _count_classes(config: TrialConfig) -> int:
    path = config.data.prepared_path
    return load_info(path).num_development_classes if is_prepared(config.data) else 1000


def _measure_data(context: StudyContext) -> list[int]:
    sizes = []
    for data in context.datasets:
        # Of others nobody knows how many images there are before they are read.
        if not is_prepared(data) and data.name in OFFICIAL_IMAGES:
            pixels = data.image_size_px**2 * (1 if data.color == "gray" else 3)
            # The official test sets are about as large as the training sets; DVC keeps a copy.
            sizes.append(2 * 2 * OFFICIAL_IMAGES[data.name] * pixels)
    return sizes
