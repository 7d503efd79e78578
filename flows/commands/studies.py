"""dml studies and dml check: the studies of the project, and whether they are sound."""

from typing import Annotated

import typer

from flows.commands.terminal import DEFAULT_PARAMS, ParamsOption, SetOption, say

commands = typer.Typer()


def study_names() -> list[str]:
    """Returns the names of all study files of the project."""
    from tasks.study import STUDIES_FOLDER

    return sorted(path.stem for path in STUDIES_FOLDER.glob("*.yaml"))


@commands.command()
def studies() -> None:
    """List the studies with their questions."""
    import yaml

    from dml_core.config import ConfigError
    from dml_core.config.yaml_files import read_yaml_mapping
    from tasks.study import STUDIES_FOLDER

    for name in study_names():
        try:
            question = read_yaml_mapping(STUDIES_FOLDER / f"{name}.yaml").get("question", "")
        except (ConfigError, yaml.YAMLError):
            question = "(cannot be read: dml check says why)"
        say(f"{name:24s} {question}")


@commands.command()
def check(
    studies: Annotated[
        list[str] | None, typer.Argument(help="Names of studies; all by default.")
    ] = None,
    params: ParamsOption = DEFAULT_PARAMS,
    set_: SetOption = None,
) -> None:
    """Find every mistake in the parameters and studies, without training anything."""
    from dml_core.config import ConfigError
    from dml_core.studies.own_code_checks import check_own_code
    from tasks.study import StudyRequest, UnknownStudy, load_context

    problems: list[str] = []
    for name in studies or study_names():
        request = StudyRequest(study=name, params=str(params), overrides=tuple(set_ or ()))
        try:
            context = load_context(request)
            check_own_code(context.study)
            profiles = list(context.study.definition.profiles)
            for profile in profiles:
                own = load_context(request.model_copy(update={"profile": profile}))
                check_own_code(own.study)
        except (ConfigError, UnknownStudy) as error:
            problems.append(str(error))
        else:
            also = f", also as {', '.join(profiles)}" if profiles else ""
            say(f"{name}: {len(context.study.arms)} arms, sound{also}")
    if problems:
        # A problem of params.yaml occurs once for each study.
        raise ValueError("\n".join(dict.fromkeys(problems)))
