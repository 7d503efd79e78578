import pytest

from tests.references.tiny_trials import prepare_tiny


@pytest.fixture(scope="session")
def tiny_root(tmp_path_factory):
    root = tmp_path_factory.mktemp("prepared")
    prepare_tiny(root)
    return root
