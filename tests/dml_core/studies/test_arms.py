import pytest

from dml_core.studies.definition import Study
from dml_core.studies.resolved import expand_arms, name_grid_point


def names(**fields):
    return [arm.name for arm in expand_arms(Study(question="?", **fields))]


@pytest.mark.parametrize(
    ("point", "name"),
    [
        ({"loss.name": "triplet", "model.embedding_dim": 64}, "triplet-64"),
        ({"sampler.batch_size": 30}, "batch_size-30"),
        ({"sampler.batch_size": 30, "sampler.class_ratio": 0.1}, "batch_size-30-class_ratio-0.1"),
        ({"model.layer_norm": True}, "layer_norm-true"),
        ({"sampler.class_ratio": None}, "class_ratio-none"),
        ({"model.backbone": "timm:resnet50/a"}, "timm_resnet50_a"),
        ({"evaluation.recall_at": [1, 2]}, "recall_at-1_2"),
    ],
)
def test_a_point_of_the_grid_has_a_short_safe_name(point, name):
    assert name_grid_point(point) == name


def test_a_grid_makes_every_combination_in_the_order_of_the_file():
    grid = {"loss.name": ["triplet", "contrastive"], "model.embedding_dim": [32, 64]}
    assert names(grid=grid) == ["triplet-32", "triplet-64", "contrastive-32", "contrastive-64"]


def test_a_grid_may_list_whole_sections():
    grid = {"loss": [{"name": "triplet", "margin": 0.1}, {"name": "contrastive"}]}
    arms = expand_arms(Study(question="?", grid=grid))
    assert arms[0].layer == {"loss.name": "triplet", "loss.margin": 0.1}


def test_listed_arms_are_multiplied_by_the_grid():
    arms = {"plain": {"loss.name": "triplet"}, "anchor": {"loss.name": "proxy_anchor"}}
    study = Study(question="?", arms=arms, grid={"model.embedding_dim": [32, 64]})
    expanded = expand_arms(study)
    assert [arm.name for arm in expanded] == ["plain-32", "plain-64", "anchor-32", "anchor-64"]
    assert expanded[3].layer == {"loss.name": "proxy_anchor", "model.embedding_dim": 64}


def test_with_a_grid_an_arm_is_compared_at_the_same_point():
    arms = {"plain": {}, "other": {"scientific": {"seed": 1}, "compare_with": "plain"}}
    study = Study(question="?", arms=arms, grid={"model.embedding_dim": [32, 64]})
    assert expand_arms(study)[3].compare_with == "plain-64"


def test_sections_may_be_nested_or_dotted():
    nested = Study(
        question="?",
        arms={"a": {"loss": {"name": "triplet", "margin": 0.1}}},
        nuisance={"optimizer": {"learning_rate": {"uniform": [0.1, 0.2]}}},
    )
    arm = expand_arms(nested)[0]
    assert arm.layer == {"loss.name": "triplet", "loss.margin": 0.1}
    assert list(arm.space) == ["optimizer.learning_rate"]


def test_an_arms_own_range_counts_before_the_studys():
    arms = {"a": {"scientific": {}, "nuisance": {"loss.alpha": {"choice": [1]}}}, "b": {}}
    study = Study(question="?", arms=arms, nuisance={"loss.alpha": {"choice": [2, 3]}})
    assert [arm.space["loss.alpha"].options for arm in expand_arms(study)] == [(1,), (2, 3)]
