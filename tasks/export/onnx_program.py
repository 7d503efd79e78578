"""Writes a model as ONNX and checks it with onnxruntime against torch."""

# B = batch, C = channels, D = embedding dim, S = input size

import contextlib
import io
import warnings
from importlib.util import find_spec
from pathlib import Path

import numpy as np

from dml_core.seeding import numpy_stream
from dml_core.training.checkpoint import Checkpoint
from tasks.tracking import embedding_loader as loader
from tasks.tracking.packing import export_program, write_facts

TOLERANCE = 1e-4
"""Largest difference of an output from torch's; of the largest value, where that is above 1."""
PACKAGES = ("onnx", "onnxruntime", "onnxscript")
INPUT_NAME = "pixels"
OUTPUT_NAME = "embeddings"
_BATCHES = (1, 2, 5)
"""Sizes of the compared batches: the exported one, one image, and another."""


def write_onnx(checkpoint: Checkpoint, folder: Path) -> float:
    """Writes program.onnx and its facts; returns its largest difference from torch.

    Raises:
        ValueError: where a package is missing, or the outputs differ from torch's.
    """
    _check_packages()
    import torch

    folder.mkdir(parents=True, exist_ok=True)
    program = export_program(checkpoint)
    path = folder / loader.ONNX_FILE
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        # The exporter warns of deprecated calls in itself, and prints its steps.
        warnings.simplefilter("ignore")
        exported = torch.onnx.export(
            program,
            input_names=[INPUT_NAME],
            output_names=[OUTPUT_NAME],
            dynamo=True,
            verbose=False,
        )
        assert exported is not None, "the exporter of torch.export programs returns its result"
        # One file: two of them get separated.
        exported.save(path, external_data=False)
    write_facts(checkpoint, folder)
    return check_onnx(checkpoint, program, path)


def check_onnx(checkpoint: Checkpoint, program: object, path: Path) -> float:
    """Returns the largest difference between an ONNX file and the program it was made from.

    Raises:
        ValueError: where it is above the tolerance.
    """
    import onnxruntime
    import torch

    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    network = program.module()  # type: ignore[attr-defined]
    size = checkpoint.config.input_size_px
    stream = numpy_stream(0, "export.onnx")
    worst = 0.0
    for count in _BATCHES:
        shape = (count, checkpoint.in_channels, size, size)
        pixels = stream.integers(0, 256, shape, dtype=np.uint8)
        with torch.no_grad():
            wanted = network(torch.from_numpy(pixels)).float().numpy()
        (found,) = session.run([OUTPUT_NAME], {INPUT_NAME: pixels})
        scale = max(1.0, float(np.abs(wanted).max()))
        worst = max(worst, float(np.abs(found - wanted).max()) / scale)
    if not worst <= TOLERANCE:
        raise ValueError(
            f"the ONNX model must give torch's embeddings to {TOLERANCE:g}. They differ by "
            f"{worst:.2g}. Use --format pyfunc or --format torch for this model."
        )
    return worst


def _check_packages() -> None:
    missing = [name for name in PACKAGES if find_spec(name) is None]
    if missing:
        raise ValueError(
            f"--format onnx needs the packages {', '.join(PACKAGES)}. Missing: "
            f"{', '.join(missing)}. Run: pip install {' '.join(missing)}"
        )
