"""The device of a training, its kind, and the precision that it is fast in."""

import pytest
import torch

from dml_core.devices import (
    choose_device,
    describe_device,
    expect_device,
    has_bfloat16,
    runs_in_bfloat16,
)

CPU = torch.device("cpu")


@pytest.fixture
def instructions(monkeypatch):
    """Sets what the processor is said to have."""

    def has(**names: bool) -> None:
        monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: names)

    return has


def test_a_device_is_described_by_its_kind(instructions):
    instructions(avx512_f=True)
    kind = describe_device(CPU)
    assert kind == f"cpu {torch.backends.cpu.get_cpu_capability()}"
    assert describe_device(torch.device("meta")) == "meta"


def test_a_processor_with_bfloat16_is_of_another_kind_than_one_without(instructions):
    instructions(avx512_f=True, avx512_bf16=False)
    without = describe_device(CPU)
    instructions(avx512_f=True, avx512_bf16=True)
    assert describe_device(CPU) == f"{without} bfloat16"


def test_a_gpus_name_and_a_clusters_devices_stay_open():
    expect_device.cache_clear()
    kind = describe_device(CPU)
    assert expect_device("cpu", is_here=True) == kind
    assert expect_device("cpu", is_here=False) == "cpu"
    assert expect_device("cuda:1", is_here=True) == "cuda"
    assert expect_device("auto", is_here=False) == ""
    here = "cuda" if torch.cuda.is_available() else kind
    assert expect_device("auto", is_here=True) == here


def test_auto_runs_in_bfloat16_where_the_processor_has_instructions_for_it(instructions):
    for name in ("avx512_bf16", "amx_bf16", "sve_bf16", "bf16"):
        instructions(**{name: True})
        assert runs_in_bfloat16("auto", CPU)
    instructions(avx512_f=True, amx_bf16=False)
    assert not runs_in_bfloat16("auto", CPU)
    assert not runs_in_bfloat16("auto", torch.device("meta"))


def test_a_chosen_precision_does_not_depend_on_the_device(instructions):
    for has in (True, False):
        instructions(avx512_bf16=has)
        assert runs_in_bfloat16("bfloat16", CPU)
        assert not runs_in_bfloat16("float32", CPU)


def test_this_processor_answers_whether_it_has_bfloat16():
    # Torch's own question to the processor, where it has one.
    if torch.backends.cpu.get_cpu_capability() == "AVX512":
        either = torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()
        assert has_bfloat16(CPU) == either


def test_a_gpu_that_is_not_there_is_refused_with_the_remedy(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ValueError, match=r"training.device=cuda:1 .* Set training.device to auto"):
        choose_device("cuda:1")
    assert choose_device("auto") == CPU
