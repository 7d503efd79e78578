"""Reads study files and reports all their problems at once."""

import copy
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from dml_core.config.loading import ProjectConfig
from dml_core.config.problems import ConfigError, describe, suggest
from dml_core.config.yaml_files import read_yaml_mapping, read_yaml_text
from dml_core.studies.added_seeds import AddedSeeds
from dml_core.studies.arm_checks import TrainingSize, find_arm_problems, resolve_arms
from dml_core.studies.checks import (
    count_trials_per_arm,
    find_arm_set_problems,
    find_baseline_problems,
    find_budget_problems,
    find_key_problems,
    find_shared_folders,
    find_size_problems,
)
from dml_core.studies.definition import (
    NAME_PATTERN,
    ArmDefinition,
    Figure,
    Profile,
    SchedulerConfig,
    Study,
    apply_profile,
)
from dml_core.studies.resolved import ResolvedArm, ResolvedStudy, expand_arms
from dml_core.studies.result_checks import find_claim_problems, find_figure_problems

NO_SEEDS = AddedSeeds()
_PLACEHOLDER = Study(question="?", arms={"arm": ArmDefinition()})


def read_definition(content: dict[str, Any]) -> tuple[Study, list[str]]:
    """Returns the study and the problems of its form, one sentence each.

    Malformed entries are removed from the study, so that the other values can be checked and all
    problems be reported at once.
    """
    problems: list[str] = []
    has_lost_arms = False
    rest = copy.deepcopy(content)
    while True:
        try:
            return Study.model_validate(rest), problems
        except ValidationError as error:
            locations = [detail["loc"] for detail in error.errors(include_url=False)]
            # Do not report missing arms that were removed as malformed.
            if () not in locations or not has_lost_arms:
                problems += _describe(error)
            removed = [_leave_out(rest, location) for location in locations if location]
            # Otherwise a problem that cannot be removed would loop forever.
            if () in locations or not any(removed):
                return _PLACEHOLDER, problems
            has_lost_arms |= any(location[0] in ("arms", "grid") for location in locations)


def _describe(error: ValidationError) -> list[str]:
    found = describe(error, sections={}, known_keys=_known_keys())
    return [_clean(text) for text in found]


def _clean(text: str) -> str:
    return text.replace(".[key] must be text that matches", " must be a name that matches").replace(
        ".[key] must be", " must be"
    )


def _leave_out(content: dict[str, Any], location: Sequence[int | str]) -> bool:
    """Removes the innermost named entry at the location of a problem, if it is there."""
    if location[0] == "question":
        content["question"] = "?"
        return True
    node: Any = content
    owner, name = None, None
    for part in location:
        if not isinstance(node, dict) or part not in node:
            break
        owner, name, node = node, part, node[part]
    # An entry with two problems is already gone at the second one.
    if owner is not None:
        del owner[name]
    return owner is not None


def _known_keys() -> list[str]:
    keys = list(Study.model_fields)
    sections: dict[str, type[BaseModel]] = {"figure": Figure, "scheduler": SchedulerConfig}
    for section, model in sections.items():
        keys += [f"{section}.{name}" for name in model.model_fields]
    return [*keys, *(f"profiles.smoke.{name}" for name in Profile.model_fields)]


FILE_PROFILE = "quick"
"""The name of the study as written in its file."""


def is_file_itself(profile: str | None) -> bool:
    """Returns whether a profile name means the study as written in its file."""
    return profile is None or profile == FILE_PROFILE


def load_study(
    path: Path,
    project: ProjectConfig,
    *,
    profile: str | None = None,
    size: TrainingSize | None = None,
    text: str | None = None,
    added: AddedSeeds = NO_SEEDS,
) -> ResolvedStudy:
    """Returns the study of a file, resolved over params.yaml and under `--set`.

    Args:
        path: the study's file; its stem is the study's name.
        project: params.yaml and `--set`.
        profile: name of a profile to apply; None or `quick` takes the study as written.
        size: size of the training set, if known; then impossible batches are found too.
        text: content of the file, if already read; None reads the file.
        added: seeds that were added to it.

    Raises:
        ConfigError: with the file and every problem.
    """
    text = read_yaml_text(path) if text is None else text
    definition, problems = read_definition(read_yaml_mapping(path, text=text))
    is_well_formed = not problems
    if not re.match(NAME_PATTERN, path.stem):
        problems.append(
            f"the file's name must have up to 80 letters, digits, dots, dashes and underscores, "
            f"since it names the results' folder. Got {path.stem!r}. Rename the file."
        )
    if FILE_PROFILE in definition.profiles:
        problems.append(
            f"profiles.{FILE_PROFILE} is the name of the study itself and cannot be a profile. "
            "Put its values into the study."
        )
    chosen, arms = _put_profile_over(definition, profile, problems)
    study = replace(_assemble(path, chosen, arms, project), text=text, added=added)
    problems += _find_problems(study, size=size, is_well_formed=is_well_formed)
    if is_well_formed:
        variants = _list_variants(path, definition, project)
        problems += find_shared_folders(variants, project.trial.data)
    if problems:
        source = str(path) if is_file_itself(profile) else f"{path} as profile {profile!r}"
        raise ConfigError(source, problems)
    return study


def check_batches(study: ResolvedStudy, size: TrainingSize) -> None:
    """Raises ConfigError if an arm's batches cannot be drawn from a training set of this size."""
    problems = find_arm_problems(study, size)
    if problems:
        raise ConfigError(str(study.path), problems)


def _put_profile_over(
    study: Study, name: str | None, problems: list[str]
) -> tuple[Study, list[ResolvedArm]]:
    if is_file_itself(name):
        return study, _keep_arms(study, study.quick_arms, "quick_arms", problems)
    assert name is not None
    if name not in study.profiles:
        known = ", ".join(study.profiles) or "none"
        problems.append(
            f"profiles has no {name!r}.{suggest(name, study.profiles)} There are: {known}."
        )
        return study, expand_arms(study)
    chosen = study.profiles[name]
    study = apply_profile(study, chosen)
    return study, _keep_arms(study, chosen.arms, f"profiles.{name}.arms", problems)


def _keep_arms(
    study: Study, wanted: tuple[str, ...] | None, key: str, problems: list[str]
) -> list[ResolvedArm]:
    """Returns the arms of a study that a key of the file names; all if it names none."""
    arms = expand_arms(study)
    names = [arm.name for arm in arms]
    for arm in wanted or ():
        if arm not in names:
            problems.append(f"{key} must name arms. Got {arm!r}.{suggest(arm, names)}")
    return [arm for arm in arms if wanted is None or arm.name in wanted]


def _assemble(
    path: Path, definition: Study, arms: Sequence[ResolvedArm], project: ProjectConfig
) -> ResolvedStudy:
    return ResolvedStudy(
        name=path.stem,
        path=path,
        definition=definition,
        arms=tuple(arms),
        baseline=definition.baseline or (arms[0].name if arms else ""),
        trials_per_arm=count_trials_per_arm(definition, arms),
        seeds=definition.seeds,
        folds=definition.folds or project.trial.data.folds,
        searcher=definition.searcher,
        scheduler=definition.scheduler,
        search_seed=project.pipeline.sweep.seed,
        params=dict(project.trial_params),
        overrides=dict(project.trial_overrides),
    )


def _list_variants(
    path: Path, definition: Study, project: ProjectConfig
) -> dict[str, ResolvedStudy]:
    """Returns the study under "", and with each profile under the profile's name."""
    changed = {"": definition}
    changed |= {name: apply_profile(definition, p) for name, p in definition.profiles.items()}
    return {
        name: _assemble(path, study, expand_arms(study), project) for name, study in changed.items()
    }


def _find_problems(
    study: ResolvedStudy, *, size: TrainingSize | None, is_well_formed: bool
) -> list[str]:
    if too_large := find_size_problems(study):
        return too_large
    problems = find_key_problems(study)
    if len({arm.name for arm in study.arms}) == len(study.arms):
        problems += find_arm_problems(study, size)
    # Removed entries are missing from the study, so these checks would report false problems.
    if not is_well_formed:
        return problems
    configs = resolve_arms(study)
    return [
        *problems,
        *find_arm_set_problems(study, configs),
        *find_baseline_problems(study),
        *find_budget_problems(study.definition, study.arms),
        *find_figure_problems(study.definition, study.arms, configs),
        *find_claim_problems(study, configs),
    ]
