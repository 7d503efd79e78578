"""Over how many processes one trial is trained."""

from pydantic import Field

from dml_core.config.section import Section


class TeamConfig(Section):
    """The processes that train one trial together."""

    workers: int = Field(default=1, ge=1, le=1024)
    """Processes that share each batch of the trial, each with ray.cpus_per_trial and
    ray.gpus_per_trial. The batch stays sampler.batch_size, so that losses and gradients are those
    of one worker up to rounding. Part of the bits: another number rounds otherwise."""
