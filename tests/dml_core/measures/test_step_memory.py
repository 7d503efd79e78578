import torch

from dml_core.measures.step_cost import measure_peak_bytes

CPU = torch.device("cpu")


def test_the_peak_counts_what_is_held_at_one_time():
    def work():
        first = torch.zeros(1000)
        second = torch.zeros(2000)
        del first
        third = torch.zeros(500)
        return second, third

    # 4 bytes a number: 3,000 numbers while the first two are held.
    assert measure_peak_bytes(work, device=CPU) == 12_000


def test_what_was_there_before_does_not_count():
    before = torch.zeros(100_000)
    assert 400_000 <= measure_peak_bytes(lambda: before + 1, device=CPU) < 400_100
    assert measure_peak_bytes(lambda: before.add_(1), device=CPU) < 100


def test_a_backward_pass_counts_its_gradients():
    weights = torch.ones(10_000, requires_grad=True)

    def work():
        (weights * weights).sum().backward()

    # The product, then at least the gradient of the weights: more than one array, below five.
    assert 2 * 40_000 <= measure_peak_bytes(work, device=CPU) < 5 * 40_000
