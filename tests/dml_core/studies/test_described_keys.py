from pathlib import Path

import pytest

from dml_core.config import load_params
from dml_core.config.losses import ProxyAnchorConfig
from dml_core.studies.definition import Study
from dml_core.studies.described_keys import STUDY_FILE, describe_keys, find_keys, say_value

PARAMS = Path(__file__).parents[3] / "params.yaml"


def test_every_key_of_params_is_described():
    keys = {each.key for each in describe_keys()}
    assert set(load_params(PARAMS)) - keys == set()


def test_every_key_of_a_study_is_described():
    tops = {each.key.partition(".")[0] for each in describe_keys() if each.file == STUDY_FILE}
    assert tops == set(Study.model_fields)


def test_everything_has_a_meaning_and_a_type():
    assert [each.key for each in describe_keys() if not (each.meaning and each.type)] == []
    assert [each.key for each in describe_keys() if each.type == "any value"] == []


def test_a_knob_of_two_losses_is_described_for_each():
    by_kinds = {each.kinds: each for each in find_keys("loss.alpha")}
    assert set(by_kinds) == {("proxy_anchor",), ("multi_similarity",)}
    one = by_kinds["proxy_anchor",]
    assert one.meaning == ProxyAnchorConfig.model_fields["alpha"].description
    assert one.say_values() == "number, > 0 and <= 1000; default 32.0"


@pytest.mark.parametrize(
    ("key", "said"),
    [
        ("sampler.batch_size", "whole number, >= 2 and <= 1000000; default 100"),
        ("sampler.class_ratio", "number or null, share from 0 to 1, > 0 and <= 1; default null"),
        ("ray.connect_timeout_seconds", "number, seconds, > 0; default 15.0"),
        ("training.gradient_clip", "one of none, value, norm; default none"),
        ("mlflow.tracking_uri", 'text; default ""'),
        ("training.channels_last", "true or false; default true"),
        (
            "evaluation.recall_at",
            "list of whole numbers, at least 1 entry and each >= 1 and <= 1000000; "
            "default [1, 2, 4, 8]",
        ),
        ("trunk.train", r"text, matches `^(all|none|lora|from:[\w.]+)$`; default all"),
        ("question", "text, at least 1 character(s); default required"),
        ("loss.expansion.points", "whole number, >= 0 and <= 256; default 0"),
    ],
)
def test_type_unit_range_and_default_are_those_of_the_model(key: str, said: str):
    assert [each.say_values() for each in find_keys(key)] == [said]


def test_a_key_that_all_kinds_declare_alike_names_none():
    (batch_size,) = find_keys("sampler.batch_size")
    assert batch_size.kinds == ()
    assert all(each.kinds for each in find_keys("data.image_size_px"))
    alias, of_own = find_keys("data.alias")
    assert (alias.default, of_own.default) == ("as data.name", "own")
    assert of_own.kinds == ("python:module:Name",)


def test_a_name_lists_the_kinds():
    (name,) = find_keys("optimizer.name")
    assert (name.type, name.default) == ("one of adamw, sgd", "adamw")


def test_a_section_the_end_of_a_key_and_the_study_are_found():
    assert {each.key.partition(".")[0] for each in find_keys("loss")} == {"loss"}
    assert {each.key for each in find_keys("learning_rate")} == {"optimizer.learning_rate"}
    assert {each.key for each in find_keys("arms.scientific")} == {"arms.<name>.scientific"}
    assert "scheduler.grace_epochs" in {each.key for each in find_keys("study")}


@pytest.mark.parametrize(
    ("wanted", "nearest"),
    [("loss.alhpa", "loss.alpha"), ("learning_rat", "optimizer.learning_rate"), ("seds", "seeds")],
)
def test_an_unknown_key_is_refused_with_the_nearest(wanted: str, nearest: str):
    with pytest.raises(ValueError, match=rf"'{wanted}' is not a key .*Nearest: .*{nearest}"):
        find_keys(wanted)


def test_values_are_written_as_in_a_file():
    values = [None, True, "", [1, "a"], 0.5]
    assert [say_value(value) for value in values] == ["null", "true", '""', "[1, a]", "0.5"]
