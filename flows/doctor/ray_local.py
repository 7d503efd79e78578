"""What a Ray cluster of this machine's own needs; none is started."""

from dml_core.config.pipeline import RayConfig
from dml_core.data.parallel import count_cores
from flows.doctor.findings import Finding, broken, ok, warning
from flows.doctor.node_facts import NodeFacts, gather_here
from flows.doctor.nodes import judge_gpu, judge_shared_memory


def check_local(config: RayConfig) -> list[Finding]:
    """Looks at what `ray.address=local` would have."""
    facts = gather_here(wants_gpu=config.gpus_per_trial > 0)
    return judge_local(facts, config, num_cores=count_cores())


def judge_local(facts: NodeFacts, config: RayConfig, *, num_cores: int) -> list[Finding]:
    """Tells what the facts of this machine mean for a cluster of its own."""
    findings = [
        ok("ray", "ray.address=local: no cluster to reach, a run starts its own on this machine"),
        _judge_cores(config, num_cores),
        judge_shared_memory(facts),
    ]
    if config.gpus_per_trial > len(facts.gpus):
        findings.append(
            broken(
                "gpu",
                f"ray.gpus_per_trial={config.gpus_per_trial:g}, and this machine has "
                f"{len(facts.gpus)} GPU(s): no trial would ever start",
                "Use --set ray.gpus_per_trial=0, or let ray.address name a cluster with GPUs",
            )
        )
    else:
        findings.append(judge_gpu(facts, wants_gpu=config.gpus_per_trial > 0))
    return findings


def _judge_cores(config: RayConfig, num_cores: int) -> Finding:
    if config.cpus_per_trial > num_cores:
        return warning(
            "ray",
            f"ray.cpus_per_trial={config.cpus_per_trial:g} on {num_cores} core(s): one trial runs "
            "at a time, slower than it expects",
            "Lower ray.cpus_per_trial",
        )
    at_once = int(num_cores / config.cpus_per_trial)
    return ok("ray", f"{num_cores} core(s), room for {at_once} trial(s) at once")
