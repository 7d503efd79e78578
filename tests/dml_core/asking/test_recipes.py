"""The table of recipes: every entry is a study that can be trained."""

from pathlib import Path

import pytest

from dml_core.asking.recipes import (
    DRAWINGS,
    PHOTOS,
    TINY_PX,
    choose_recipe,
    choose_size_px,
    list_arms,
    make_batch,
    make_label_batch,
)
from dml_core.asking.sizing import Size
from dml_core.asking.study_file import AskedStudy, answers_same_question
from dml_core.config.loading import load_project_config
from dml_core.studies.arm_checks import TrainingSize
from dml_core.studies.loading import load_study

ROOT = Path(__file__).parents[3]
DATA = {
    "data.name": "folder",
    "data.alias": "birds",
    "data.raw": "/photos/our birds: 'all'",
    "data.image_size_px": 48,
    "data.color": "rgb",
}


def make_asked(
    recipe, question, *, num_classes=50, tries=2, is_continuous=False, command="dml ask", chosen=()
):
    arms = list_arms(recipe, question, num_classes=num_classes, is_continuous=is_continuous)
    batch = (
        make_label_batch(recipe, num_images=num_classes)
        if is_continuous
        else make_batch(recipe, num_classes=num_classes)
    )
    data = {**DATA, "data.image_size_px": choose_size_px(recipe, median_px=40)}
    if is_continuous:
        data |= {"data.table": "images.csv", "data.continuous_labels": ["angle"]}
    size = Size(tuple(arms), 8, tries, 3)
    found, chosen = ["120 images of 60 classes"], dict(chosen)
    return AskedStudy(
        command, "birds", question, recipe, found, data, batch, arms, size, chosen, is_continuous
    )


def load(asked, *, num_classes=50):
    project = load_project_config(ROOT / "params.yaml")
    size = TrainingSize(num_classes, 20 * num_classes)
    return load_study(Path("studies/birds.yaml"), project, text=asked.render(), size=size)


@pytest.mark.parametrize(
    ("question", "num_classes"),
    [("loss", 2), ("loss", 7), ("dim", 3), ("batch", 40), ("samples", 40), ("samples", 1000)],
)
@pytest.mark.parametrize("recipe", [PHOTOS, DRAWINGS], ids=lambda recipe: recipe.name)
def test_every_recipe_and_question_is_a_sound_study(recipe, question, num_classes):
    study = load(make_asked(recipe, question, num_classes=num_classes), num_classes=num_classes)
    assert study.seeds == (0, 1, 2)
    assert study.trials_per_arm == 2
    config = study.arm_config(study.arms[0].name)
    assert config.data.raw == "/photos/our birds: 'all'"
    assert config.training.epochs == 8
    assert study.definition.question.startswith("birds: ")


@pytest.mark.parametrize("recipe", [PHOTOS, DRAWINGS], ids=lambda recipe: recipe.name)
def test_labels_that_are_numbers_lead_to_the_log_ratio_loss(recipe):
    study = load(make_asked(recipe, "loss", is_continuous=True))
    assert [arm.name for arm in study.arms] == ["log_ratio", "dense_triplet"]
    assert study.definition.figure.y == ("test.ndcg_at_10",)
    with pytest.raises(ValueError, match=r"must be loss for labels that are numbers\. Got 'dim'"):
        list_arms(recipe, "dim", num_classes=9, is_continuous=True)


@pytest.mark.parametrize(
    ("num_images", "size", "anchors"), [(9, 9, 1), (15, 15, 1), (25, 24, 2), (500, 64, 4)]
)
def test_few_images_with_numbers_fill_a_smaller_batch(num_images, size, anchors):
    batch = make_label_batch(PHOTOS, num_images=num_images)
    assert (batch["sampler.batch_size"], batch["sampler.anchors_per_batch"]) == (size, anchors)
    load(make_asked(PHOTOS, "loss", num_classes=num_images, is_continuous=True))


def test_without_time_to_tune_all_arms_have_the_same_learning_rate():
    study = load(make_asked(PHOTOS, "loss", tries=1))
    assert not study.searched_arms
    rates = {study.arm_config(arm.name).optimizer.learning_rate for arm in study.arms}
    assert rates == {PHOTOS.single_rate}


@pytest.mark.parametrize("question", ["batch", "samples"])
def test_a_question_that_few_classes_cannot_answer_says_so(question):
    with pytest.raises(ValueError, match=f"--question {question} needs more classes: of 2 "):
        list_arms(PHOTOS, question, num_classes=2)


def test_small_images_are_trained_from_nothing_and_photographs_are_not():
    assert choose_recipe(median_px=TINY_PX) is DRAWINGS
    assert choose_recipe(median_px=TINY_PX + 1) is PHOTOS
    assert choose_size_px(PHOTOS, median_px=600) == 112
    assert choose_size_px(DRAWINGS, median_px=28) == 28
    assert choose_size_px(DRAWINGS, median_px=9) == 16


@pytest.mark.parametrize(
    ("num_classes", "size", "samples"), [(1000, 64, 4), (16, 64, 4), (7, 63, 9), (2, 64, 32)]
)
def test_a_batch_of_few_classes_holds_more_images_of_each(num_classes, size, samples):
    batch = make_batch(PHOTOS, num_classes=num_classes)
    assert batch["sampler.batch_size"] == size
    assert batch["sampler.samples_per_class"] == samples


def test_the_file_begins_with_the_command_that_wrote_it():
    asked = make_asked(PHOTOS, "loss", command="dml ask 'my photos' --minutes 30")
    text = asked.render()
    assert text.startswith("# Written by: dml ask 'my photos' --minutes 30\n")
    assert "# 120 images of 60 classes\n" in text
    assert answers_same_question(text, "dml ask 'my photos' --minutes 30")
    # A second call may have another budget, but no other path.
    assert answers_same_question(text, "dml ask 'my photos' --minutes 90")
    assert not answers_same_question(text, "dml ask other --minutes 30")
    assert not answers_same_question("question: q\n", "dml ask 'my photos' --minutes 30")


def test_a_value_that_a_person_sets_comes_before_the_recipes():
    chosen = {"data.image_size_px": 160, "data.max_images_per_class": 20}
    study = load(make_asked(PHOTOS, "loss", chosen=chosen))
    config = study.arm_config(study.arms[0].name)
    assert config.data.image_size_px == 160
    assert config.data.max_images_per_class == 20
