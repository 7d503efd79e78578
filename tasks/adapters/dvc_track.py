"""Has DVC track a file or a folder that no stage makes."""

from pathlib import Path

from tasks.adapters.dvc_session import open_repo


def track(folder: Path, path: Path) -> Path:
    """Puts a path's bytes into the DVC cache and returns the `.dvc` file that names them.

    Running it again after a change records the new version.

    Args:
        folder: the root of the project.
        path: a file or a folder inside the project, which git must not track.
    """
    with open_repo(folder) as repo:
        (stage,) = repo.add(str(path.resolve()))
        return Path(stage.path)
