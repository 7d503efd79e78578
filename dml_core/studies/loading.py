"""Reads study files and reports everything that is wrong with one at once."""

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

_PLACEHOLDER = Study(question="?", arms={"arm": ArmDefinition()})


def read_definition(content: dict[str, Any]) -> tuple[Study, list[str]]:
    """Returns the study and what is wrong with its form, a sentence each.

    Where something is wrong, the study is what remains without it, so that its values can be
    checked too, and all problems be reported at once.
    """
    problems: list[str] = []
    has_lost_arms = False
    rest = copy.deepcopy(content)
    while True:
        try:
            return Study.model_validate(rest), problems
        except ValidationError as error:
            locations = [detail["loc"] for detail in error.errors(include_url=False)]
            # Where arms were malformed and left out, it is no news that none are there.
            if () not in locations or not has_lost_arms:
                problems += _describe(error)
            removed = [_leave_out(rest, location) for location in locations if location]
            # Without this a problem that cannot be left out would be met again for ever.
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
    """Removes the innermost named entry that a problem's location leads to, if it is there."""
    if location[0] == "question":
        content["question"] = "?"
        return True
    node: Any = content
    owner, name = None, None
    for part in location:
        if not isinstance(node, dict) or part not in node:
            break
        owner, name, node = node, part, node[part]
    # An entry with two problems is gone when the second one is looked at.
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
"""The profile that is the file itself."""


def is_file_itself(profile: str | None) -> bool:
    """Whether a profile changes nothing: the file's own size has a name too."""
    return profile is None or profile == FILE_PROFILE


def load_study(
    path: Path,
    project: ProjectConfig,
    *,
    profile: str | None = None,
    size: TrainingSize | None = None,
    text: str | None = None,
) -> ResolvedStudy:
    """Returns the study in a file, over the project's params.yaml and below its `--set`.

    Args:
        path: the study's file; its name without the ending is the study's name.
        project: params.yaml and `--set`.
        profile: which of the study's profiles to put over it; None or `quick` takes the study as
            it is.
        size: of the prepared data, where it is known; then batches that cannot be made of them
            are found too.
        text: the file's content where it was read before; None reads the file.

    Raises:
        ConfigError: with the file, and every problem with its key.
    """
    text = read_yaml_text(path) if text is None else text
    definition, problems = read_definition(read_yaml_mapping(path, text=text))
    is_well_formed = not problems
    if not re.match(NAME_PATTERN, path.stem):
        problems.append(
            f"the file's name must be of up to 80 letters, digits, dots, dashes and underscores, "
            f"since results are filed under it. Got {path.stem!r}. Rename the file."
        )
    if FILE_PROFILE in definition.profiles:
        problems.append(
            f"profiles.{FILE_PROFILE} is the file itself and cannot be another size of it. "
            "Put its values into the study."
        )
    chosen, arms = _put_profile_over(definition, profile, problems)
    study = replace(_assemble(path, chosen, arms, project), text=text)
    problems += _find_problems(study, size=size, is_well_formed=is_well_formed)
    if is_well_formed:
        variants = _list_variants(path, definition, project)
        problems += find_shared_folders(variants, project.trial.data)
    if problems:
        raise ConfigError(str(path), problems)
    return study


def check_batches(study: ResolvedStudy, size: TrainingSize) -> None:
    """Raises ConfigError where an arm's batches cannot be made of so many training images."""
    problems = find_arm_problems(study, size)
    if problems:
        raise ConfigError(str(study.path), problems)


def list_studies(folder: Path) -> list[Path]:
    """Returns the study files of a folder, by name; none where there is no such folder."""
    return sorted(path for path in folder.glob("*.y*ml") if path.suffix in (".yaml", ".yml"))


def _put_profile_over(
    study: Study, name: str | None, problems: list[str]
) -> tuple[Study, list[ResolvedArm]]:
    if is_file_itself(name):
        return study, expand_arms(study)
    assert name is not None
    if name not in study.profiles:
        known = ", ".join(study.profiles) or "none"
        problems.append(
            f"profiles has no {name!r}.{suggest(name, study.profiles)} There are: {known}."
        )
        return study, expand_arms(study)
    chosen = study.profiles[name]
    study = apply_profile(study, chosen)
    arms = expand_arms(study)
    names = [arm.name for arm in arms]
    for arm in chosen.arms or ():
        if arm not in names:
            problems.append(
                f"profiles.{name}.arms must name arms. Got {arm!r}.{suggest(arm, names)}"
            )
    return study, [arm for arm in arms if chosen.arms is None or arm.name in chosen.arms]


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
    """Returns the study by "", and as each of its profiles makes it by the profile's name."""
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
    # What was not read is missing from the study, so these would report what is not so.
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
