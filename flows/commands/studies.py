"""dml studies and dml check: what there is to ask, and whether it is sound."""

from pathlib import Path

import yaml

from dml_core.config import ConfigError
from dml_core.config.yaml_files import read_yaml_mapping
from flows.commands.terminal import say
from tasks.study import STUDIES_FOLDER, StudyRequest, load_context


def study_names() -> list[str]:
    """Returns the names of all study files of the project."""
    return sorted(path.stem for path in STUDIES_FOLDER.glob("*.yaml"))


def run_studies() -> None:
    """Prints every study with its question."""
    for name in study_names():
        try:
            question = read_yaml_mapping(STUDIES_FOLDER / f"{name}.yaml").get("question", "")
        except (ConfigError, yaml.YAMLError):
            question = "(cannot be read: dml check says why)"
        say(f"{name:24s} {question}")


def run_check(names: list[str], params: Path, assignments: list[str]) -> None:
    """Checks parameters, studies and their profiles; prints every problem and fails if one is."""
    problems: list[str] = []
    for name in names or study_names():
        request = StudyRequest(study=name, params=str(params), overrides=tuple(assignments))
        try:
            context = load_context(request)
            profiles = list(context.study.definition.profiles)
            for profile in profiles:
                load_context(request.model_copy(update={"profile": profile}))
        except ConfigError as error:
            problems.append(str(error))
        else:
            also = f", also as {', '.join(profiles)}" if profiles else ""
            say(f"{name}: {len(context.study.arms)} arms, sound{also}")
    if problems:
        # The same problem of params.yaml is found once for each study.
        raise ValueError("\n".join(dict.fromkeys(problems)))
