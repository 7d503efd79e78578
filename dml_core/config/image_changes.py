"""The changes of test images under which a model is scored again, and the names of the scores."""

from dataclasses import dataclass

from dml_core.config.trial import EvaluationConfig

OCCLUDED = "occluded"
CORRUPTED = "corrupted"


@dataclass(frozen=True)
class ImageChange:
    """One change of every test image, such as an occlusion of a given size."""

    family: str
    """`occluded` or `corrupted`."""
    kind: str
    """Of an occlusion its place, center or boundary; of a corruption its name."""
    amount: float
    """Of an occlusion the side as a share of the image's; of a corruption the severity."""

    @property
    def prefix(self) -> str:
        """Beginning of the names of its scores."""
        return f"{self.family}_{self.kind}_{self.amount:g}_"

    def __str__(self) -> str:
        """Returns it in words."""
        if self.family == OCCLUDED:
            return f"occlusion of {self.amount:g} at the {self.kind}"
        return f"{self.kind} of severity {self.amount:g}"


def list_changes(evaluation: EvaluationConfig) -> list[ImageChange]:
    """Returns the configured changes, in the order of the report."""
    occlusions = [
        ImageChange(OCCLUDED, place, size)
        for size in evaluation.occlusion
        for place in ("center", "boundary")
    ]
    corruptions = [
        ImageChange(CORRUPTED, kind, severity)
        for kind in evaluation.corruptions
        for severity in evaluation.severities
    ]
    return occlusions + corruptions


def is_of_changed_images(metric: str) -> bool:
    """Returns whether a metric, without its split, is a score of changed images."""
    return metric.startswith((f"{OCCLUDED}_", f"{CORRUPTED}_"))
