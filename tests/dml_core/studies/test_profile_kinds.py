"""A profile that chooses another dataset or sampler than the study."""

from dml_core.config.loading import put_over
from tests.references.written_studies import read_study

OTHER_KINDS = """
question: q
arms: {a: {}}
fixed:
  data: {name: glyphs, alias: drawn, images_per_class: 9, validation_fraction: 0.4}
  sampler: {batch_size: 30, class_ratio: 0.5}
profiles:
  paper:
    fixed:
      data: {name: cub200, alias: birds}
      sampler: {name: shuffled}
seeds: [0]
"""


def test_keys_that_the_chosen_kind_does_not_have_are_left_out(tmp_path):
    config = read_study(tmp_path, OTHER_KINDS, profile="paper").arm_config("a")
    assert (config.data.name, config.data.folder_name) == ("cub200", "birds")
    assert config.data.validation_fraction == 0.4
    assert (config.sampler.name, config.sampler.batch_size) == ("shuffled", 30)


def test_without_a_chosen_kind_every_key_stays():
    lower = {"data.images_per_class": 9, "sampler.class_ratio": 0.5}
    upper = {"sampler.batch_size": 3, "data.images_per_class": 8}
    assert put_over(lower, upper) == {**lower, **upper}
