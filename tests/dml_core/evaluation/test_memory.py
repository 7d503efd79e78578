"""Evaluating a large benchmark stays within bounded memory."""

import subprocess
import sys

import pytest

# Peak of the whole process minus what stood before the call: the embeddings and the imports.
# Linux hands ru_maxrss of the parent down to a new program, so the kernel's own VmHWM is read.
MEASURE = """
from pathlib import Path
import numpy as np
from dml_core.config.trial import EvaluationConfig
from dml_core.evaluation.evaluate import evaluate_embeddings

def peak_kibibytes():
    status = Path("/proc/self/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0])

random = np.random.default_rng(0)
embeddings = random.standard_normal(({num_images}, {dim}), dtype=np.float32)
more = random.integers(0, {num_classes}, {num_images} - {num_classes})
labels = np.concatenate([np.arange({num_classes}), more])
roles = np.where(np.arange({num_images}) % {query_every} == 0, "query", "gallery")
config = EvaluationConfig(recall_at={recall_at}, kmeans_iterations=1, clustering={clustering})
before = peak_kibibytes()
numbers = evaluate_embeddings(
    embeddings,
    labels,
    config=config,
    metric="cosine",
    roles=roles if {query_every} > 1 else None,
)
after = peak_kibibytes()
assert {{"recall_at_1", "map_at_r", "r_precision"}} <= set(numbers)
assert ("nmi" in numbers) == {clustering}
print((after - before) * 1024)
"""


def measure_peak_bytes(**sizes):
    """Bytes by which one evaluation raises the peak of a fresh process."""
    command = [sys.executable, "-c", MEASURE.format(**sizes)]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    return int(result.stdout)


@pytest.mark.slow
def test_sixty_thousand_images_of_many_classes_stay_below_one_and_a_half_gigabytes():
    # The size of Stanford Online Products' test half. A full table of classes by clusters would
    # take 1 GB, and all distances 14 GB. Every eighth image is a query, which takes a fraction
    # of the time and no less memory: queries come in blocks, and splitting them off is a copy.
    num_images, dim = 60_000, 512
    peak = measure_peak_bytes(
        num_images=num_images,
        dim=dim,
        num_classes=11_316,
        query_every=8,
        recall_at=(1, 10, 100, 1000),
        clustering=True,
    )
    # The index alone is a copy of the gallery: a smaller peak would be a failed measurement.
    assert num_images * 7 // 8 * dim * 4 < peak < 1.5e9


@pytest.mark.slow
def test_a_class_of_thousands_of_images_stays_below_700_megabytes():
    # Three classes of about 4,000, so R is 4,000. The neighbours of all queries would take
    # 12,000 x 4,000 x 8 bytes = 384 MB, and the precisions at every rank several times that.
    peak = measure_peak_bytes(
        num_images=12_000,
        dim=32,
        num_classes=3,
        query_every=1,
        recall_at=(1,),
        clustering=False,
    )
    assert 12_000 * 32 * 4 < peak < 7e8


@pytest.mark.slow
def test_images_that_are_compared_once_stay_below_300_megabytes():
    # All products of 20,000 would take 1.6 GB; a block of them takes 67 MB, a copy of a stripe 17.
    peak = measure_peak_bytes(
        num_images=20_000,
        dim=128,
        num_classes=2_000,
        query_every=1,
        recall_at=(1, 1000),
        clustering=False,
    )
    assert 4096 * 4096 * 4 < peak < 3e8
