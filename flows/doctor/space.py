"""Disk and memory: the needs of the plan, from the sizes of its networks, against free space."""

from dataclasses import dataclass
from pathlib import Path

from dml_core.config import TrialConfig
from dml_core.config.loading import to_flat_dict
from dml_core.data.parallel import count_cores
from dml_core.data.prepared_info import load_info
from dml_core.studies.cost import OFFICIAL_IMAGES, sum_cost
from flows.doctor.nodes import TEMPORARY, NodeFacts, gather_here
from flows.doctor.probes import DoctorRequest, Finding, broken, in_units, ok, warning
from tasks.study import StudyContext, is_prepared, load_context

FULL_FRACTION = 0.95
"""Ray starts nothing new on a disk that is fuller."""
BASE_MEMORY = 900 * 1024**2
"""Bytes of a trial's process with torch and Ray loaded, measured without batches."""
_NUMBER_BYTES = 4
_OPTIMIZER_NUMBERS = {"adamw": 2, "sgd": 1}
"""Numbers that an optimiser keeps for each weight."""
_DECISIVE = ("model", "trunk", "loss", "optimizer", "augmentation", "data")


@dataclass(frozen=True)
class PlanNeeds:
    """Bytes: an upper limit for the disk, a lower limit for the memory."""

    num_trained: int
    checkpoint_bytes: int
    """Of the largest arm."""
    trials_bytes: int
    """Of all kept checkpoints, and of the winners' copies in results and DVC."""
    data_bytes: int
    """Of datasets that are not prepared yet, and of their copies in DVC's cache."""
    memory_bytes: int
    """Of one trial."""

    @property
    def disk_bytes(self) -> int:
        """Total on disk."""
        return self.trials_bytes + self.data_bytes


def probe(request: DoctorRequest) -> list[Finding]:
    """Checks this machine's disks and memory."""
    context = load_context(request.study)
    facts = gather_here(folders=list_folders(context))
    needs = estimate_needs(context)
    results = str(Path.cwd() / context.project.pipeline.sweep.results_root)
    findings = [judge_disk(facts, needs, folder=results), judge_fullness(facts)]
    config = context.project.pipeline.ray
    if config.address == "local":
        at_once = max(1, int(count_cores() / config.cpus_per_trial))
        at_once = min(at_once, config.max_concurrent or at_once)
        findings.append(judge_memory(facts, needs, at_once=at_once))
    return findings


def list_folders(context: StudyContext) -> list[str]:
    """Returns the folders that the plan writes to."""
    pipeline = context.project.pipeline
    data = [str(data.prepared_path) for data in context.datasets]
    fetched = [pipeline.data_access.cache_root] if pipeline.data_access.mode == "dvc" else []
    return [pipeline.sweep.results_root, *data, *fetched]


def judge_disk(node: NodeFacts, needs: PlanNeeds, *, folder: str) -> Finding:
    """Checks that the disk has room for the plan."""
    free, _ = node.free_disk[folder]
    plan = (
        f"the plan writes up to {in_units(needs.disk_bytes)} ({needs.num_trained} trials, "
        f"checkpoints of {in_units(needs.checkpoint_bytes)}, data {in_units(needs.data_bytes)})"
    )
    message = f"{plan}, and {in_units(free)} are free at {folder}"
    remedy = (
        "Free some, let sweep.results_root name a larger disk, or lower "
        "training.keep_checkpoints or the study's trials"
    )
    if free < needs.disk_bytes:
        return broken("disk", message, remedy)
    if free < 2 * needs.disk_bytes:
        return warning("disk", message, remedy)
    return ok("disk", message)


def judge_fullness(node: NodeFacts) -> Finding:
    """Checks that Ray can use the disk of temporary files."""
    free, total = node.free_disk[TEMPORARY]
    used = 1 - free / total
    message = f"the disk of temporary files on {node.name} is {used:.0%} full"
    if used > FULL_FRACTION:
        return broken(
            "disk",
            f"{message}, and above {FULL_FRACTION:.0%} Ray starts no trial",
            "Remove old files there, or let TMPDIR or RAY_TMPDIR name another disk",
        )
    return ok("disk", f"{message}, {in_units(free)} are free")


def judge_memory(node: NodeFacts, needs: PlanNeeds, *, at_once: int) -> Finding:
    """Checks that concurrent trials fit into memory."""
    wanted = at_once * needs.memory_bytes
    message = (
        f"{at_once} trial(s) at once need at least {in_units(wanted)}, and "
        f"{in_units(node.free_memory)} are free on {node.name}"
    )
    remedy = "Lower ray.max_concurrent or raise ray.cpus_per_trial, or end what takes memory there"
    if node.free_memory < needs.memory_bytes:
        return broken("memory", message, remedy)
    if node.free_memory < wanted:
        return warning("memory", message, remedy)
    return ok("memory", message)


def estimate_needs(context: StudyContext) -> PlanNeeds:
    """Returns the needs of a study if all its trials are trained."""
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
    """Returns the bytes of a checkpoint: weights, best weights, and the optimiser's numbers."""
    import torch

    from dml_core.losses.registry import build_loss_from_config
    from dml_core.models.building import build_embedding_model

    # On the meta device tensors have sizes and no content, so that nothing is computed or loaded.
    # It takes seconds to initialise, more than the small network takes to build.
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
        # The number of images of other datasets is unknown before they are read.
        if not is_prepared(data) and data.name in OFFICIAL_IMAGES:
            pixels = data.image_size_px**2 * (1 if data.color == "gray" else 3)
            # The official test sets are about as large as the training sets; DVC keeps a copy.
            sizes.append(2 * 2 * OFFICIAL_IMAGES[data.name] * pixels)
    return sizes
