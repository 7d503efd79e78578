"""Adds the files of a new project to the wheel, from the only place where they are: this folder.

Everything else about the package is in pyproject.toml.
"""

import shutil
import tomllib
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

ROOT = Path(__file__).parent


class BuildWithTemplate(build_py):
    """Copies the files that `dml init` needs into the package tasks."""

    def run(self) -> None:
        """Builds the packages, then adds the files."""
        super().run()
        # An editable install finds them in the clone.
        if self.editable_mode:
            return
        settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
        template = settings["tool"]["dml"]["project-template"]
        target = Path(self.build_lib, *template["target"].split("/"))
        for pattern in template["files"]:
            for path in sorted(ROOT.glob(pattern)):
                copy = target / path.relative_to(ROOT)
                copy.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(path, copy)


setup(cmdclass={"build_py": BuildWithTemplate})
