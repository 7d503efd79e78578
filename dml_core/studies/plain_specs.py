"""Trial specs as plain values, to be stored and sent."""

from typing import Any

from dml_core.config import TrialConfig
from dml_core.studies.trial_spec import TrialSpec


def spec_to_plain(spec: TrialSpec) -> dict[str, Any]:
    """Returns a spec as JSON-like values."""
    return {
        "trial_id": spec.trial_id,
        "study": spec.study,
        "arm": spec.arm,
        "stage": spec.stage,
        "number": spec.number,
        "values": dict(spec.values),
        "config": spec.config.model_dump(mode="json"),
    }


def spec_from_plain(plain: dict[str, Any]) -> TrialSpec:
    """Returns the spec that `spec_to_plain` made plain."""
    return TrialSpec(**{**plain, "config": TrialConfig.model_validate(plain["config"])})
