import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torchvision.transforms import RandomResizedCrop

from dml_core.config.data import AugmentationConfig
from dml_core.data.inputs import evaluation_boxes, training_boxes
from dml_core.seeding import numpy_stream

sizes_strategy = st.lists(
    st.tuples(st.integers(1, 300), st.integers(1, 300)), min_size=1, max_size=8
).map(np.array)


def draw(sizes, crop, size_px, seed=0, **knobs):
    config = AugmentationConfig(crop=crop, **knobs)
    stream = numpy_stream(seed, "augmentation")
    return training_boxes(np.asarray(sizes), size_px=size_px, config=config, stream=stream)


def test_central_box_of_a_wide_image():
    # 256 x 340 to 224: rows start at (256 - 224) / 2 = 16, columns at (340 - 224) / 2 = 58.
    boxes = evaluation_boxes(np.array([[256, 340]]), size_px=224, config=AugmentationConfig())
    assert boxes.tolist() == [[16, 58, 224, 224]]


def test_image_smaller_than_the_input_gives_its_central_square():
    boxes = evaluation_boxes(np.array([[100, 160]]), size_px=224, config=AugmentationConfig())
    assert boxes.tolist() == [[0, 30, 100, 100]]


def test_whole_image_where_evaluation_squeezes():
    config = AugmentationConfig(evaluation_crop="whole")
    assert evaluation_boxes(np.array([[9, 5]]), size_px=4, config=config).tolist() == [[0, 0, 9, 5]]


@settings(max_examples=100, deadline=None)
@given(
    sizes_strategy,
    st.sampled_from(["random_resized", "random", "jitter", "center"]),
    st.integers(1, 256),
    st.integers(0, 1000),
)
def test_boxes_stay_inside_their_images(sizes, crop, size_px, seed):
    boxes = draw(sizes, crop, size_px, seed)
    assert boxes.shape == (len(sizes), 4)
    assert (boxes[:, :2] >= 0).all()
    assert (boxes[:, 2:] >= 1).all()
    assert (boxes[:, :2] + boxes[:, 2:] <= sizes).all()


def test_random_resized_boxes_have_the_wished_area_and_aspect():
    sizes = np.full((4000, 2), 200)
    boxes = draw(sizes, "random_resized", 64, min_area=0.2, max_aspect=2.0)
    areas = boxes[:, 2] * boxes[:, 3] / 200**2
    aspects = boxes[:, 3] / boxes[:, 2]
    assert areas.min() > 0.19
    assert areas.max() > 0.9
    assert aspects.min() == pytest.approx(0.5, abs=0.05)
    assert aspects.max() == pytest.approx(2.0, abs=0.2)


def test_random_resized_boxes_are_distributed_as_torchvisions():
    image = torch.zeros(3, 150, 200)
    ours = draw(np.full((3000, 2), (150, 200)), "random_resized", 64, min_area=0.08)
    torch.manual_seed(0)
    theirs = np.array(
        [RandomResizedCrop.get_params(image, [0.08, 1.0], [3 / 4, 4 / 3]) for _ in range(3000)]
    )
    for column in range(4):
        # Both are samples of 3,000, so their means differ by chance only.
        error = np.hypot(ours[:, column].std(), theirs[:, column].std()) / np.sqrt(3000)
        assert abs(ours[:, column].mean() - theirs[:, column].mean()) < 4 * error
        assert ours[:, column].std() == pytest.approx(theirs[:, column].std(), rel=0.06)


def test_random_box_visits_every_place():
    boxes = draw(np.full((500, 2), 10), "random", 8)
    assert {tuple(box) for box in boxes[:, :2].tolist()} == {
        (r, c) for r in range(3) for c in range(3)
    }


def test_plain_probability_squeezes_its_share():
    boxes = draw(np.full((2000, 2), 10), "random", 8, plain_probability=0.5)
    share = (boxes[:, 2] == 10).mean()
    assert share == pytest.approx(0.5, abs=0.05)


def test_shift_moves_both_ways_and_may_leave_the_image():
    boxes = draw(np.full((500, 2), 10), "shift", 10, shift_px=2)
    assert sorted(set(boxes[:, 0].tolist())) == [-2, -1, 0, 1, 2]
    assert (boxes[:, 2:] == 10).all()


def test_jitter_changes_size_and_place():
    boxes = draw(np.full((500, 2), 288), "jitter", 224, size_jitter_px=12, shift_px=7)
    assert (boxes[:, 2].min(), boxes[:, 2].max()) == (212, 236)
    # Central corner of a 224 box is 32; half the size change and the shift add up to 6 + 7.
    assert boxes[:, 0].min() >= 32 - 13
    assert boxes[:, 0].max() <= 32 + 13
