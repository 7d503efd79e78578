"""Tests of optimisers, schedules and sparse updates."""

import math
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from dml_core.config.training import (
    AdamWConfig,
    ConstantScheduleConfig,
    CosineScheduleConfig,
    InverseTimeScheduleConfig,
    OptimizerConfig,
    SgdConfig,
    StepScheduleConfig,
)
from dml_core.data.prepared import open_development
from dml_core.measures.step_cost import measure_peak_bytes
from dml_core.training.checkpoint import load_checkpoint
from dml_core.training.optimizers import (
    EagerAdamW,
    EagerSgd,
    SampledRowsOptimizer,
    build_optimizer,
    set_learning_rates,
    with_dense_gradient,
)
from dml_core.training.optimizers import compute_learning_rate_factor as factor
from dml_core.training.state import build_state
from tests.dml_core.training.test_trial import assert_same_checkpoints, train
from tests.references.tiny_trials import tiny_config


def test_constant_stays():
    assert factor(ConstantScheduleConfig(), epoch=7, step=700, num_steps=1000) == 1.0


@pytest.mark.parametrize(("epoch", "expected"), [(0, 1), (9, 1), (10, 0.5), (19, 0.5), (20, 0.25)])
def test_step_halves_every_ten_epochs(epoch, expected):
    schedule = StepScheduleConfig(epochs=10, gamma=0.5)
    assert factor(schedule, epoch=epoch, step=epoch * 5, num_steps=1000) == expected


@pytest.mark.parametrize(
    ("step", "expected"), [(0, 1.0), (25, 0.5 * (1 + math.sqrt(0.5))), (50, 0.5), (100, 0.0)]
)
def test_cosine_falls_along_half_a_wave(step, expected):
    value = factor(CosineScheduleConfig(), epoch=0, step=step, num_steps=100)
    assert value == pytest.approx(expected, abs=1e-12)


def test_cosine_ends_at_its_final_fraction():
    schedule = CosineScheduleConfig(final_fraction=0.1)
    assert factor(schedule, epoch=0, step=100, num_steps=100) == pytest.approx(0.1)


def test_inverse_time_divides_by_one_plus_decay_times_step():
    # The log-ratio recipe: 1 / (1 + 1e-4 * 5000) = 2/3.
    schedule = InverseTimeScheduleConfig(decay=1e-4)
    assert factor(schedule, epoch=0, step=5000, num_steps=10) == pytest.approx(2 / 3)


ROOT = Path(__file__).parents[3]
TRAINING = """
import sys
from pathlib import Path
from dml_core.config import TrialConfig
from dml_core.data.prepared import open_development
from dml_core.training.in_folder import train_in_folder

config = TrialConfig.model_validate_json(sys.argv[1])
result = train_in_folder(config, open_development(config.data), Path(sys.argv[2]))
print(len(result.reports), "torch._dynamo" in sys.modules)
"""


def run_steps(optimizer_class, **knobs):
    torch.manual_seed(0)
    network = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Tanh(), torch.nn.Linear(8, 2))
    optimizer = optimizer_class(network.parameters(), lr=0.1, weight_decay=0.1, **knobs)
    for number in range(4):
        if number == 2:
            optimizer.load_state_dict(optimizer.state_dict())
        optimizer.zero_grad(set_to_none=True)
        network(torch.randn(4, 8)).square().sum().backward()
        optimizer.step()
    return torch.nn.utils.parameters_to_vector(network.parameters())


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize(
    ("ours", "theirs", "knobs"),
    [(EagerAdamW, torch.optim.AdamW, {}), (EagerSgd, torch.optim.SGD, {"momentum": 0.9})],
)
def test_weights_equal_those_of_torchs_optimisers_bit_for_bit(ours, theirs, knobs, fused):
    assert torch.equal(
        run_steps(ours, fused=fused, **knobs), run_steps(theirs, fused=fused, **knobs)
    )


def test_a_step_records_no_gradient_and_leaves_gradients_enabled():
    weight = torch.nn.Parameter(torch.ones(3))
    optimizer = EagerSgd([weight], lr=0.5)
    weight.sum().backward()
    optimizer.step()
    assert weight.tolist() == [0.5, 0.5, 0.5]
    assert weight.grad_fn is None
    assert torch.is_grad_enabled()


@pytest.mark.parametrize("knobs", [{}, {"loss__proxy_ratio": 0.5}], ids=["dense", "sampled"])
def test_a_whole_training_never_imports_the_compiler(tiny_root, tmp_path, knobs):
    config = tiny_config(tiny_root, training__epochs=1, loss__name="proxy_anchor", **knobs)
    done = subprocess.run(
        [sys.executable, "-c", TRAINING, config.model_dump_json(), str(tmp_path / "run")],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split() == ["1", "False"]


NUM_ROWS, DIM = 12, 5
CPU = torch.device("cpu")
OPTIMIZERS = [
    AdamWConfig(learning_rate=0.05, weight_decay=0.1),
    AdamWConfig(learning_rate=0.05, weight_decay=0.0),
    SgdConfig(learning_rate=0.05, weight_decay=0.1),
    SgdConfig(learning_rate=0.05, momentum=0.0),
]
every_optimizer = pytest.mark.parametrize(
    "config", OPTIMIZERS, ids=["adamw", "adamw-no-decay", "sgd", "sgd-no-momentum"]
)


def build(config: OptimizerConfig, parameter: torch.nn.Parameter, *, samples_rows: bool = True):
    return build_optimizer(
        config, parts={"proxies": [parameter]}, device=CPU, samples_rows=samples_rows
    )


def draw_steps(count: int, *, size: int = 4, num_rows: int = NUM_ROWS, seed: int = 1):
    stream = torch.Generator().manual_seed(seed)
    for _ in range(count):
        rows = torch.randperm(num_rows, generator=stream)[:size]
        yield rows, torch.randn(size, DIM, generator=stream, dtype=torch.float64)


def give_gradient(parameter: torch.nn.Parameter, rows: torch.Tensor, values: torch.Tensor):
    parameter.grad = torch.sparse_coo_tensor(
        rows.unsqueeze(0), values, parameter.shape, check_invariants=True
    )


def new_parameter(num_rows: int = NUM_ROWS) -> torch.nn.Parameter:
    stream = torch.Generator().manual_seed(0)
    return torch.nn.Parameter(torch.randn(num_rows, DIM, generator=stream, dtype=torch.float64))


@every_optimizer
def test_each_row_behaves_as_if_it_had_its_own_optimiser(config):
    whole = new_parameter()
    optimizer = build(config, whole)
    alone = [torch.nn.Parameter(row.detach().clone()) for row in whole]
    own = [build(config, row, samples_rows=False) for row in alone]
    for number, (rows, values) in enumerate(draw_steps(40)):
        give_gradient(whole, rows, values)
        set_learning_rates(optimizer, 1 / (1 + number))
        optimizer.step()
        for row, value in zip(rows.tolist(), values, strict=True):
            alone[row].grad = value.clone()
            set_learning_rates(own[row], 1 / (1 + number))
            own[row].step()
    expected = torch.stack([row.detach() for row in alone])
    torch.testing.assert_close(whole.detach(), expected, rtol=1e-9, atol=1e-12)


@every_optimizer
def test_rows_that_were_not_sampled_keep_their_bits(config):
    parameter = new_parameter()
    optimizer = build(config, parameter)
    for rows, values in draw_steps(20):
        before = parameter.detach().clone()
        give_gradient(parameter, rows, values)
        optimizer.step()
        moved = (parameter.detach() != before).any(dim=1).nonzero().squeeze(1)
        assert moved.tolist() == sorted(rows.tolist())


@every_optimizer
@pytest.mark.parametrize("num_rows", [NUM_ROWS, 200], ids=["most rows", "few rows"])
def test_a_restored_optimiser_resumes_bit_for_bit(config, num_rows):
    whole, broken = new_parameter(num_rows), new_parameter(num_rows)
    optimizers = [build(config, whole), build(config, broken)]
    for number, (rows, values) in enumerate(draw_steps(12, num_rows=num_rows)):
        for parameter, optimizer in zip((whole, broken), optimizers, strict=True):
            give_gradient(parameter, rows, values)
            optimizer.step()
        if number == 5:
            state = optimizers[1].state_dict()
            optimizers[1] = build(config, broken)
            optimizers[1].load_state_dict(state)
    assert torch.equal(whole, broken)


def test_a_checkpoint_omits_the_state_of_rows_that_were_never_sampled():
    parameter = new_parameter(1000)
    optimizer = build(OPTIMIZERS[0], parameter)
    seen = set()
    for rows, values in draw_steps(3, num_rows=1000):
        give_gradient(parameter, rows, values)
        optimizer.step()
        seen |= set(rows.tolist())
    (state,) = optimizer.state_dict()["state"].values()
    assert state["rows"].tolist() == sorted(seen)
    assert {len(state[name]) for name in ("step", "moments")} == {len(seen)}


def test_a_step_allocates_memory_only_for_its_rows():
    parameter = torch.nn.Parameter(torch.randn(100_000, DIM))
    optimizer = build(OPTIMIZERS[0], parameter)

    def step(seed: int) -> None:
        ((rows, values),) = draw_steps(1, size=50, num_rows=100_000, seed=seed)
        give_gradient(parameter, rows, values.float())
        optimizer.step()

    step(0)
    drawing = 100_000 * 8
    peak = measure_peak_bytes(lambda: step(1), device=CPU)
    # A tenth of the parameter would be one pass over a tenth of all rows.
    assert peak - drawing < parameter.nbytes / 10


@pytest.mark.parametrize("kind", ["value", "norm"])
def test_sparse_gradients_are_clipped_as_dense_ones(kind):
    sparse, dense, other = new_parameter(), new_parameter(), new_parameter()
    ((rows, values),) = draw_steps(1)
    give_gradient(sparse, rows, values.clone())
    dense.grad = torch.zeros_like(dense).index_copy(0, rows, values)
    clip = {
        "value": torch.nn.utils.clip_grad_value_,
        "norm": torch.nn.utils.clip_grad_norm_,
    }[kind]
    for parameter in (sparse, dense):
        other.grad = torch.full_like(other, 2.0)
        clip([with_dense_gradient(parameter), with_dense_gradient(other)], 0.5)
    assert sparse.grad is not None
    torch.testing.assert_close(sparse.grad.to_dense(), dense.grad)
    assert dense.grad.abs().max() <= 0.5
    assert with_dense_gradient(other) is other


def test_a_trial_with_a_proxy_ratio_moves_only_the_proxies_of_its_steps(tiny_root, tmp_path):
    config = tiny_config(tiny_root, loss__proxy_ratio=0.1, training__epochs=1)
    _, paths = train(config, tmp_path)
    optimizer = load_checkpoint(paths[1]).optimizer
    proxies = [group["part"] for group in optimizer["param_groups"]].index("proxies")
    (number,) = optimizer["param_groups"][proxies]["params"]
    state = optimizer["state"][number]
    # Four classes a batch of 16, and as many proxies: those of the batch.
    steps = len(build_state(config, open_development(config.data)).sampler)
    assert state["step"].sum() == 4 * steps


@pytest.mark.parametrize("clip", ["none", "norm", "value"])
@pytest.mark.parametrize("name", ["adamw", "sgd"])
def test_a_trial_with_a_proxy_ratio_resumes_with_the_same_bits(tiny_root, tmp_path, clip, name):
    knobs = {"loss__proxy_ratio": 0.7, "optimizer__name": name, "training__gradient_clip": clip}
    config = tiny_config(tiny_root, **knobs)
    (tmp_path / "whole").mkdir()
    _, whole = train(config, tmp_path / "whole")
    _, paths = train(config, tmp_path, stop_after=1)
    _, paths = train(config, tmp_path, resume_from=load_checkpoint(paths[1]))
    assert_same_checkpoints(whole[3], paths[3])


def test_all_proxies_keep_the_plain_optimiser(tiny_root):
    config = tiny_config(tiny_root, loss__proxy_ratio=1.0)
    state = build_state(config, open_development(config.data))
    assert type(state.optimizer) is EagerAdamW
    sampled = tiny_config(tiny_root, loss__proxy_ratio=0.5)
    assert isinstance(
        build_state(sampled, open_development(sampled.data)).optimizer, SampledRowsOptimizer
    )
