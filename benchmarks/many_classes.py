"""A proxy loss with a million classes against the full loss with ten thousand, step by step.

`python -m benchmarks.many_classes` prints the table of docs/losses.md. Each case trains in its own
process, which gives its peak memory, and the cases alternate, so that noise affects all of them.
Times are processor times of one thread, which other processes disturb less than wall time.
"""

import multiprocessing
import statistics
import time
from dataclasses import dataclass
from multiprocessing.connection import Connection

import torch
from torch import nn
from torch.nn import functional

from benchmarks.rows import Row, make_row, milliseconds
from benchmarks.settings import Settings
from dml_core.config.training import AdamWConfig
from dml_core.losses.proxies import ProxyLoss, draw_proxy_subset
from dml_core.losses.registry import build_loss
from dml_core.process_memory import prepare_memory
from dml_core.training.optimizers import build_optimizer
from dml_core.training.report import measure_peak_memory_mib

GROUP = "many_classes"
BATCH, DIM, IMAGES = 100, 128, 2000
ROWS_BATCH = 180
"""Batch size of the rows, as in the benchmark of losses."""
ROUNDS, STEPS, WARMUP_STEPS = 11, 8, 80
CPU = torch.device("cpu")


@dataclass(frozen=True)
class Case:
    """A loss, its number of classes, and the share of proxies in a step."""

    loss: str
    num_classes: int
    proxy_ratio: float
    batch: int = BATCH


@dataclass(frozen=True)
class Round:
    """Time, loss and memory of some steps."""

    seconds_per_step: float
    mean_loss: float
    peak_mib: float


CASES = [
    Case(loss, num_classes, proxy_ratio)
    for loss in ("proxy_anchor", "norm_softmax")
    for num_classes, proxy_ratio in ((10_000, 1.0), (1_000_000, 0.001), (1_000_000, 0.01))
]


class Training:
    """Trains a linear layer and the proxies on random images of random classes."""

    def __init__(self, case: Case) -> None:
        torch.manual_seed(0)
        self.batch = case.batch
        loss = build_loss(
            case.loss,
            num_classes=case.num_classes,
            embedding_dim=DIM,
            proxy_ratio=case.proxy_ratio,
        )
        assert isinstance(loss, ProxyLoss)
        self.loss = loss
        self.loss.sparse_gradient = loss.draws_subset
        self.network = nn.Linear(DIM, DIM)
        self.images = torch.randn(IMAGES, DIM)
        self.labels = torch.randint(case.num_classes, (IMAGES,))
        self.optimizer = build_optimizer(
            AdamWConfig(),
            parts={"head": self.network.parameters(), "proxies": loss.parameters()},
            device=CPU,
            samples_rows=loss.draws_subset,
        )

    def take_step(self) -> float:
        """Trains on one batch and returns its loss."""
        chosen = torch.randint(IMAGES, (self.batch,))
        embeddings = functional.normalize(self.network(self.images[chosen]))
        loss = self.loss(embeddings, self.labels[chosen])
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        self.optimizer.step()
        return float(loss.detach())

    def take_steps(self, count: int) -> Round:
        """Trains on a number of batches."""
        started = time.process_time()
        losses = [self.take_step() for _ in range(count)]
        seconds = (time.process_time() - started) / count
        return Round(seconds, statistics.mean(losses), measure_peak_memory_mib(CPU))


def serve(case: Case, line: Connection) -> None:
    """Takes as many steps as each message requests; 0 ends it."""
    torch.set_num_threads(1)
    # As in the workers of a sweep.
    prepare_memory()
    training = Training(case)
    while count := line.recv():
        line.send(training.take_steps(count))


def run_rows(settings: Settings) -> list[Row]:
    """Returns a row for each loss: 1 % of a million proxies against all of ten thousand."""
    rows = []
    for loss in dict.fromkeys(case.loss for case in CASES):
        full, sampled = ([1.0], [1.0])
        if not settings.short:
            cases = [
                Case(loss, 10_000, 1.0, batch=ROWS_BATCH),
                Case(loss, 1_000_000, 0.01, batch=ROWS_BATCH),
            ]
            rounds = measure_rounds(cases)
            full, sampled = ([r.seconds_per_step for r in taken[1:]] for taken in rounds)
        rows.append(
            make_row(
                GROUP,
                f"{loss}, a million classes, proxy_ratio 0.01",
                ours=milliseconds(sampled),
                theirs=milliseconds(full),
                target=1.5,
                against="all proxies of ten thousand classes",
                difference=compare_with_drawn(loss),
            )
        )
    return rows


def compare_with_drawn(name: str) -> float:
    """Returns how far a loss with sampled proxies is from the full loss of those proxies.

    That is the largest difference of the value and of the gradients of embeddings and proxies.
    """
    torch.manual_seed(0)
    embeddings, labels = torch.randn(BATCH, DIM), torch.randint(5000, (BATCH,))
    sampled = build_loss(name, num_classes=5000, embedding_dim=DIM, proxy_ratio=0.1)
    assert isinstance(sampled, ProxyLoss)
    drawn = draw_proxy_subset(
        labels,
        num_classes=5000,
        size=sampled.num_participating,
        generator=torch.Generator().manual_seed(1),
    )
    sampled.reseed(torch.Generator().manual_seed(1))
    few = build_loss(name, num_classes=len(drawn.classes), embedding_dim=DIM)
    assert isinstance(few, ProxyLoss)
    few.proxies.data.copy_(sampled.proxies.data[drawn.classes])
    results = []
    for loss, targets in ((sampled, labels), (few, drawn.targets)):
        leaf = embeddings.clone().requires_grad_()
        value = loss(leaf, targets)
        value.backward()
        results.append([value.detach(), leaf.grad, loss.proxies.grad])
    results[0][2] = results[0][2][drawn.classes]
    return max(float((one - other).abs().max()) for one, other in zip(*results, strict=True))


def measure_rounds(cases: list[Case]) -> list[list[Round]]:
    """Returns for each case the warm-up and then each round."""
    context = multiprocessing.get_context("spawn")
    lines, processes = [], []
    for case in cases:
        ours, theirs = context.Pipe()
        process = context.Process(target=serve, args=(case, theirs), daemon=True)
        process.start()
        lines.append(ours)
        processes.append(process)
    # The warm-up touches all memory for the first time, which makes the system allocate it.
    taken: list[list[Round]] = [[_request(line, WARMUP_STEPS)] for line in lines]
    for _ in range(ROUNDS):
        for of_case, line in zip(taken, lines, strict=True):
            of_case.append(_request(line, STEPS))
    for line, process in zip(lines, processes, strict=True):
        line.send(0)
        process.join()
    return taken


def run_many_classes(cases: list[Case]) -> list[dict[str, object]]:
    """Returns a row for each case; the first is the reference of the others."""
    rounds = measure_rounds(cases)
    seconds = [statistics.median(r.seconds_per_step for r in taken[1:]) for taken in rounds]
    return [
        {
            "loss": case.loss,
            "classes": case.num_classes,
            "proxy_ratio": case.proxy_ratio,
            "step_ms": 1000 * of_case,
            "divided_by_full": of_case / seconds[0],
            "peak_mib": round(taken[-1].peak_mib),
            "loss_first": taken[0].mean_loss,
            "loss_last": taken[-1].mean_loss,
        }
        for case, of_case, taken in zip(cases, seconds, rounds, strict=True)
    ]


def _request(line: Connection, count: int) -> Round:
    line.send(count)
    answer: Round = line.recv()
    return answer


def main() -> None:
    """Prints the table as Markdown, loss by loss."""
    columns: list[str] = []
    for name in dict.fromkeys(case.loss for case in CASES):
        for row in run_many_classes([case for case in CASES if case.loss == name]):
            if not columns:
                columns = list(row)
                print(f"| {' | '.join(columns)} |\n|{'---|' * len(columns)}")
            cells = (f"{v:.3g}" if isinstance(v, float) else f"{v}" for v in row.values())
            print(f"| {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
