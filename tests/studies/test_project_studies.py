"""The studies of this project, in every size."""

import json
from pathlib import Path

import pytest

from dml_core.analysis.narrowing import list_claimed_arms, narrow_claim
from dml_core.config.loading import load_project_config, to_flat_dict
from dml_core.data.prepared_info import effective_values
from dml_core.studies.cost import sum_cost
from dml_core.studies.loading import load_study
from tests.references.study_table import render_rows

ROOT = Path(__file__).parents[2]
PATHS = sorted((ROOT / "studies").glob("*.yaml"))
OF_PAPERS = [path.stem for path in PATHS if path.stem != "main"]
BEYOND_THE_PAPERS = {"adaptation", "matryoshka", "memory_size"}
PROFILES = ("quick", "smoke", "paper")


@pytest.fixture(scope="module")
def project():
    return load_project_config(ROOT / "params.yaml")


@pytest.fixture(scope="module")
def studies(project):
    """Every study of a paper by name and profile; loading finds every mistake."""
    return {
        (name, profile): load_study(ROOT / "studies" / f"{name}.yaml", project, profile=profile)
        for name in OF_PAPERS
        for profile in PROFILES
    }


def configs_of(study):
    return [study.arm_config(arm.name) for arm in study.arms]


def count_trained(study):
    return sum_cost(study, {arm.name: 1.0 for arm in study.arms}).num_trained


def test_there_is_a_study_for_every_experiment_of_the_papers():
    assert len({*OF_PAPERS} - BEYOND_THE_PAPERS) == 22


@pytest.mark.parametrize("name", OF_PAPERS)
def test_a_study_says_its_question_source_and_claims(studies, name):
    study = studies[name, "quick"]
    assert study.definition.question.endswith("?")
    assert study.definition.source
    assert study.definition.claims
    assert len(study.seeds) >= 3


@pytest.mark.parametrize("name", OF_PAPERS)
def test_quick_and_smoke_run_on_the_embedded_data(studies, name):
    for profile in ("quick", "smoke"):
        assert {c.data.name for c in configs_of(studies[name, profile])} == {"glyphs"}
    smoke = studies[name, "smoke"]
    assert all(c.data.folder_name.endswith("-smoke") for c in configs_of(smoke))
    assert all(c.training.epochs <= 2 for c in configs_of(smoke))
    assert count_trained(smoke) <= 12


@pytest.mark.parametrize("name", OF_PAPERS)
def test_paper_takes_the_papers_data_and_pretrained_backbones(studies, name):
    for config in configs_of(studies[name, "paper"]):
        assert config.data.name in ("cub200", "cars196", "sop", "inshop", "folder")
        assert config.data.folder_name != config.data.name
        # The papers' networks are in torchvision, those of today in timm.
        library = "timm:" if name == "adaptation" else "torchvision:"
        assert config.model.backbone.startswith(library)
        assert config.model.weights == "imagenet"
        assert config.training.epochs >= 30


def test_data_of_one_name_are_the_same_in_all_studies_and_sizes(studies):
    seen = {}
    for study in studies.values():
        for config in configs_of(study):
            values = effective_values(config.data, has_undecided=True)
            assert seen.setdefault(config.data.folder_name, values) == values


def test_a_smoke_run_judges_at_least_one_claim(studies):
    """Or the rules would never be tried before the real run."""
    for name in OF_PAPERS:
        names = {arm.name for arm in studies[name, "smoke"].arms}
        claims = studies[name, "smoke"].definition.claims
        named = [set(list_claimed_arms(narrow_claim(claim, names)[0])) for claim in claims]
        assert any(arms <= names for arms in named), name


@pytest.mark.parametrize("name", OF_PAPERS)
def test_published_numbers_are_percent_and_say_where_they_come_from(studies, name):
    for panel in studies[name, "quick"].definition.published:
        values = [value for line in panel.series.values() for value in line.values()]
        assert all(1 < value < 100 for value in values)
        assert ("plot" in panel.note) == ("figure of" in panel.source)


def test_the_trials_of_convergence_are_those_of_loss_comparison(studies):
    """What is trained for one answers the other, so that both cost no more than one."""

    of_the_test = ("evaluation.clustering", "evaluation.match_rates")

    def trainings(study):
        kept = [
            {k: v for k, v in to_flat_dict(spec.config).items() if k not in of_the_test}
            for spec in study.search_specs()
        ]
        return {json.dumps(values, sort_keys=True) for values in kept}

    every = trainings(studies["loss_comparison", "quick"])
    assert trainings(studies["convergence", "quick"]) <= every
    assert trainings(studies["gradients", "quick"]) <= every


def test_the_documentation_lists_every_study_as_its_file_says_it(studies):
    text = (ROOT / "docs" / "studies.md").read_text(encoding="utf-8")
    quick = [studies[name, "quick"] for name in OF_PAPERS]
    for row in render_rows([(study, count_trained(study)) for study in quick]):
        assert row in text


def test_every_study_and_profile_stays_valid_with_the_readers_own_images(tmp_path):
    """What `dml data add PATH --name birds --set data.image_size_px=224 --write` leaves."""
    text = (ROOT / "params.yaml").read_text()
    own = (
        "data: {name: folder, alias: birds, raw: data/raw/birds, image_size_px: 224, color: rgb}\n"
    )
    before, after = text.split("data:\n", 1)
    (tmp_path / "params.yaml").write_text(before + own + after.partition("\n\n")[2])
    project = load_project_config(tmp_path / "params.yaml")
    assert project.trial.data.folder_name == "birds"
    for path in PATHS:
        study = load_study(path, project)
        for profile in study.definition.profiles:
            load_study(path, project, profile=profile)
