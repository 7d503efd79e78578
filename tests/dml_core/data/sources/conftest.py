import pytest


@pytest.fixture(autouse=True)
def in_an_empty_project(tmp_path, monkeypatch):
    """Archives outside of the current folder are unpacked inside of it, so it is the test's own."""
    monkeypatch.chdir(tmp_path)
