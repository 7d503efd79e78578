"""What holds for all tests."""

import os

import pytest

from tests.references import empty_databases

# Before torch and faiss are imported: their threads would wait for each other in busy loops, which
# takes several times the CPU time when more test processes run than there are cores.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")


def pytest_configure(config):
    if not hasattr(config, "workerinput"):
        # Or xdist begins with the files that have the most tests, which are the quickest ones.
        config.option.loadscopereorder = False
        empty_databases.begin()


def pytest_unconfigure(config):
    if not hasattr(config, "workerinput"):
        empty_databases.end()


def pytest_collection_modifyitems(items):
    """Lets the long files begin first, or at the end all others would wait for one of them."""
    long_files = {item.path for item in items if item.get_closest_marker("slow")}
    integration = {item.path for item in items if item.get_closest_marker("integration")}
    items.sort(key=lambda item: (item.path not in long_files, item.path not in integration))


@pytest.fixture(scope="session")
def answered_project(tmp_path_factory):
    """A project with a trained and answered study; tests that write to it use a copy."""
    from tests.references.answered_projects import make_answered_project

    return make_answered_project(tmp_path_factory.mktemp("answered"))
