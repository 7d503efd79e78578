import contextlib
import shutil

import pytest

from tasks.search.indexes import build_index
from tasks.study import load_context
from tests.references.answered_projects import REQUEST


@pytest.fixture(scope="package")
def searched_project(answered_project, tmp_path_factory):
    """A copy of the answered project, with an index of its photos."""
    folder = tmp_path_factory.mktemp("searched") / "project"
    shutil.copytree(answered_project, folder)
    with contextlib.chdir(folder):
        build_index(load_context(REQUEST), folder / "photos")
    return folder
