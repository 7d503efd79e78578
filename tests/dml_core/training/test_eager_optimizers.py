"""Optimisers without their ties to the compiler: the same bits, and the compiler stays away."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from dml_core.training.optimizers import EagerAdamW, EagerSgd
from tests.references.tiny_trials import tiny_config

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


def train(optimizer_class, **knobs):
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
def test_weights_are_those_of_torchs_own_to_the_bit(ours, theirs, knobs, fused):
    assert torch.equal(train(ours, fused=fused, **knobs), train(theirs, fused=fused, **knobs))


def test_a_step_has_no_gradient_and_leaves_gradients_on():
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
