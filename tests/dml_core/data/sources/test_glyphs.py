import numpy as np
import pytest

from dml_core.config.data import GlyphsData
from dml_core.data.sources.glyphs import (
    FACES,
    _inverse_affine,
    _Pose,
    choose_characters,
    face_path,
    list_glyphs,
)

SMALL = GlyphsData(max_classes=5, images_per_class=4)


def test_all_faces_are_there():
    assert len(FACES) == 16
    assert all(face_path(face).is_file() for face in FACES)


def test_characters_are_many_and_distinct():
    characters = choose_characters()
    assert len(set(characters)) == len(characters) > 250
    assert "A" in characters
    # The Cyrillic and Greek capitals that look like a Latin A, and an accented one.
    assert not {"А", "Α", "Á"} & set(characters)


def test_equal_configuration_draws_equal_images():
    first, again = list_glyphs(SMALL).records, list_glyphs(SMALL).records
    assert len(first) == 20
    for one, other in zip(first, again, strict=True):
        assert (one.path, one.class_name, one.continuous) == (
            other.path,
            other.class_name,
            other.continuous,
        )
        assert np.array_equal(one.pixels, other.pixels)


def test_another_seed_draws_other_images():
    other = list_glyphs(SMALL.model_copy(update={"draw_seed": 1})).records
    assert not np.array_equal(list_glyphs(SMALL).records[0].pixels, other[0].pixels)


def test_fewer_classes_leave_the_others_as_they_were():
    fewer = list_glyphs(SMALL.model_copy(update={"max_classes": 3})).records
    for one, other in zip(fewer, list_glyphs(SMALL).records[:12], strict=True):
        assert np.array_equal(one.pixels, other.pixels)


def test_labels_lie_in_their_ranges():
    config = SMALL.model_copy(update={"images_per_class": 40})
    labels = [record.continuous for record in list_glyphs(config).records]
    rotations = np.array([label["rotation"] for label in labels])
    assert abs(rotations).max() <= config.rotation_degrees
    assert rotations.std() > config.rotation_degrees / 3
    assert all(abs(label["scale"] - 1) <= config.scale_range for label in labels)
    assert all(abs(label["shear"]) <= config.shear_range for label in labels)


def test_images_have_the_configured_size_and_show_something():
    for record in list_glyphs(SMALL.model_copy(update={"image_size_px": 32})).records:
        assert record.pixels.shape == (32, 32)
        assert record.pixels.max() > 120
        assert record.role == "undecided"


@pytest.mark.parametrize("point", [(10.0, 20.0), (56.0, 56.0), (100.0, 3.0)])
def test_a_quarter_turn_moves_points_as_it_should(point):
    # Turned by 90 degrees about (56, 56), the result's (x, y) comes from (y, 112 - x).
    pose = _Pose(rotation=90.0, scale=1.0, shear=0.0, shift=(0.0, 0.0))
    a, b, c, d, e, f = _inverse_affine(pose, side=112)
    x, y = point
    assert (a * x + b * y + c, d * x + e * y + f) == pytest.approx((y, 112 - x))
