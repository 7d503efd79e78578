"""The device of a training: which one, of what kind, and in which precision its network runs.

Torch is imported when it is needed: a sweep's driver names the kind of a device without it.
"""

from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


def choose_device(name: str) -> "torch.device":
    """Returns the device of `training.device`.

    Raises:
        ValueError: when a GPU is requested and there is none.
    """
    import torch

    has_gpu = torch.cuda.is_available()
    if name == "auto":
        return torch.device("cuda" if has_gpu else "cpu")
    if name.startswith("cuda") and not has_gpu:
        raise ValueError(
            f"training.device={name} needs a CUDA GPU, and torch finds none. "
            "Set training.device to auto or cpu."
        )
    return torch.device(name)


def describe_device(device: "torch.device") -> str:
    """Returns the kind of a device: a CPU's level of instructions, or a GPU's name."""
    import torch

    if device.type == "cuda":
        return f"cuda {torch.cuda.get_device_name(device)}"
    if device.type == "cpu":
        # With instructions of its own bfloat16 rounds differently, and `auto` chooses it.
        extra = " bfloat16" if has_bfloat16(device) else ""
        return f"cpu {torch.backends.cpu.get_cpu_capability()}{extra}"
    return device.type


@cache
def expect_device(name: str, *, is_here: bool) -> str:
    """Returns as much of the kind of device as the driver knows before a worker starts.

    Args:
        name: value of `training.device`.
        is_here: whether trials run on this machine; the nodes of a cluster may differ.

    Returns:
        The exact kind for a CPU of this machine. The name of a GPU stays open, since reading it
        would allocate memory on the GPU. On a cluster only `training.device` is known.
    """
    import torch

    if name == "auto":
        if not is_here:
            return ""
        name = "cuda" if torch.cuda.is_available() else "cpu"
    kind = name.partition(":")[0]
    return describe_device(torch.device("cpu")) if is_here and kind == "cpu" else kind


def has_bfloat16(device: "torch.device") -> bool:
    """Returns whether the device has instructions for bfloat16, which make it the faster type."""
    import torch

    if device.type == "cuda":
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    if device.type == "cpu":
        # AVX-512 BF16 and AMX on x86, BF16 and SVE BF16 on ARM.
        return any(has for name, has in torch.cpu.get_capabilities().items() if "bf16" in name)
    return False


def runs_in_bfloat16(precision: str, device: "torch.device") -> bool:
    """Returns whether a network runs under autocast to bfloat16.

    Args:
        precision: value of `training.precision`.
        device: where the network runs.
    """
    return has_bfloat16(device) if precision == "auto" else precision == "bfloat16"
