"""What holds for all tests."""

from tests.references import empty_databases


def pytest_configure(config):
    if not hasattr(config, "workerinput"):
        empty_databases.begin()


def pytest_unconfigure(config):
    if not hasattr(config, "workerinput"):
        empty_databases.end()


def pytest_collection_modifyitems(items):
    """Lets the long files begin first, or at the end all others would wait for one of them."""
    long_files = {item.path for item in items if item.get_closest_marker("slow")}
    integration = {item.path for item in items if item.get_closest_marker("integration")}
    items.sort(key=lambda item: (item.path not in long_files, item.path not in integration))
