"""Whatever stands in a study's file, reading it gives a study or a list of problems."""

import tempfile
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from dml_core.config import ConfigError, TrialConfig
from dml_core.config.loading import load_project_config, to_flat_dict
from dml_core.studies.definition import Study
from dml_core.studies.loading import load_study
from tests.references.fuzzed_files import (
    HOSTILE_YAML,
    built_structures,
    changed_structures,
    check_message,
    damaged_bytes,
    damaged_lines,
    fuzzed,
    no_hang,
)

ROOT = Path(__file__).parents[2]
TEXTS = {
    path.stem: path.read_text(encoding="utf-8")
    for path in sorted((ROOT / "studies").glob("*.yaml"))
}
PROJECT = load_project_config(ROOT / "params.yaml")
KEYS = [*Study.model_fields, *to_flat_dict(TrialConfig()), "choice", "uniform", "scientific"]
SNIPPETS = [text.encode("utf-8", "surrogatepass") for text in HOSTILE_YAML] + [b"\xff\xfe", b"\xc3"]


def read(content: bytes, profile: str | None = None) -> None:
    """Reads a study; whatever is wrong must be told as a ConfigError that can be printed."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "asked.yaml"
        path.write_bytes(content)
        with no_hang():
            try:
                study = load_study(path, PROJECT, profile=profile)
                # What `dml plan` and a sweep do with it first.
                assert study.digest
                if study.searcher != "tpe" and study.trials_per_arm <= 50:
                    study.search_specs()
            except ConfigError as error:
                check_message(error)


def listed(values) -> str:
    return "[" + ", ".join(map(str, values)) + "]"


TWO_ARMS = "question: q\narms: {a: {loss.alpha: 1}, b: {loss.alpha: 2}}\n"
GRID = "".join(f"  loss.k{key}: {listed(range(9))}\n" for key in range(12))
CHOICES = "".join(f"  optimizer.k{n}: {{choice: {listed(range(999))}}}\n" for n in range(9))
RATE = "nuisance: {optimizer.learning_rate: {log_uniform: [1e-4, 1e-2]}}"
PROFILES = ", ".join(f"p{n}: {{seeds: [1]}}" for n in range(99))
BATCHES = "nuisance: {sampler.batch_size: {int_uniform: [0, 1e30]}}"
ABSURD = [
    (f"question: q\ngrid:\n{GRID}", "at most 1,000 arms. Got 282,429,536,481"),
    (f"{TWO_ARMS}nuisance: {{loss.delta: {{choice: {listed(range(9000))}}}}}", "at most 1,000 opt"),
    (f"{TWO_ARMS}trials_per_arm: 2\nnuisance:\n{CHOICES}", "17,986 configurations"),
    (f"{TWO_ARMS}profiles: {{{PROFILES}}}", "profiles must be at most 20 entries"),
    (f"{TWO_ARMS}trials_per_arm: 99999\nfolds: 20\n{RATE}", "makes 3,999,970 trainings"),
    (f"{TWO_ARMS}seeds: {listed(range(5000))}", "seeds must be at most 1000 entries"),
    (f"{TWO_ARMS}claims: [{', '.join(['{text: x}'] * 5000)}]", "and 4,950 more"),
    (f"{TWO_ARMS}trials_per_arm: 2\n{BATCHES}", "int_uniform must stay within"),
]


@pytest.mark.parametrize(("text", "problem"), ABSURD)
def test_a_study_that_would_never_end_is_refused_at_once(text, problem, tmp_path):
    path = tmp_path / "asked.yaml"
    path.write_text(text, encoding="utf-8")
    with no_hang(), pytest.raises(ConfigError, match=problem):
        load_study(path, PROJECT)


@fuzzed(80)
@given(st.data())
def test_damaged_bytes(data):
    text = TEXTS[data.draw(st.sampled_from(sorted(TEXTS)))]
    read(data.draw(damaged_bytes(text.encode(), snippets=SNIPPETS)))


@fuzzed(80)
@given(st.data())
def test_damaged_lines(data):
    text = TEXTS[data.draw(st.sampled_from(sorted(TEXTS)))]
    read(data.draw(damaged_lines(text)), data.draw(st.sampled_from([None, "smoke", "paper", "x"])))


@fuzzed(80)
@given(st.data())
def test_values_of_another_kind(data):
    whole = yaml.safe_load(TEXTS[data.draw(st.sampled_from(sorted(TEXTS)))])
    read(data.draw(changed_structures(whole, KEYS)))


@fuzzed(100)
@given(built_structures(KEYS))
def test_any_structure(content):
    read(b"question: which\n" + content)


@pytest.mark.parametrize("text", HOSTILE_YAML)
def test_each_hostile_word_alone_and_as_a_value(text):
    for content in (
        text,
        f"question: q\narms: {text}",
        f"question: q\narms: {{a: {text}}}",
        f"question: q\narms: {{a: {{}}}}\nnuisance: {{loss.alpha: {text}}}\ntrials_per_arm: 2",
        f"question: q\ngrid: {{loss.alpha: [1, {text}]}}",
        f"question: {text}\narms: {{a: {{}}}}",
    ):
        read(content.encode("utf-8", "surrogatepass"))
