import pytest

from dml_core.config import ConfigError
from dml_core.studies.cost import estimate_gpu_hours
from tests.references.written_studies import read_study

CARS = """
question: q
arms: {a: {loss.alpha: 16}, b: {loss.alpha: 32}}
fixed:
  data: {name: cars196, alias: cars}
  augmentation: {input_size_px: SIZE}
  sampler: {name: shuffled, batch_size: 100}
  model: {backbone: "BACKBONE", weights: imagenet}
  training: {epochs: 10}
seeds: [0, 1, 2]
"""


def read(folder, *, backbone="torchvision:resnet50", size=224, text=CARS):
    return read_study(folder, text.replace("BACKBONE", backbone).replace("SIZE", str(size)))


def test_hours_are_images_over_speed_without_any_data(tmp_path):
    estimate = estimate_gpu_hours(read(tmp_path), images_per_second=100)
    # Of 8,054 images a quarter is for validation: 60 batches of 100 are trained on, ten times,
    # and 2,014 looked at after each epoch, at a third of the cost; 2 arms x 3 seeds.
    seconds = (10 * 6000 + 10 * 2014 / 3) / 100
    assert estimate.cost.seconds_per_trial["a"] == pytest.approx(seconds, rel=1e-3)
    assert estimate.hours == pytest.approx(6 * seconds / 3600, rel=1e-3)
    assert "as given" in estimate.assumptions[0]


def test_the_published_speed_is_that_of_a_resnet50_and_scales(tmp_path):
    known = estimate_gpu_hours(read(tmp_path), images_per_second=367).hours
    assert estimate_gpu_hours(read(tmp_path)).hours == pytest.approx(known)
    larger = estimate_gpu_hours(read(tmp_path, size=448)).hours
    assert larger == pytest.approx(4 * known)
    lighter = estimate_gpu_hours(read(tmp_path, backbone="torchvision:googlenet"))
    assert lighter.hours == pytest.approx(known * 1.498 / 4.089, rel=1e-3)
    assert "8,054 images of cars196" in lighter.assumptions[0]


def test_what_nobody_published_is_refused_with_what_to_do(tmp_path):
    with pytest.raises(ConfigError, match=r"convnet has no published.*--images-per-second"):
        estimate_gpu_hours(read(tmp_path, backbone="convnet"))
    glyphs = "{question: q, arms: {a: {}}, seeds: [0]}"
    with pytest.raises(ConfigError, match=r"data.name=glyphs has no official.*dml prepare"):
        estimate_gpu_hours(read_study(tmp_path, glyphs), images_per_second=100)
