"""A real browser for tests of pages."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from playwright.sync_api import Browser, sync_playwright

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)


def find_chromium() -> str:
    """Returns the path of a Chromium; a test without one fails, since pages are not seen then."""
    found = next(filter(None, map(shutil.which, NAMES)), None)
    if found is None:
        pytest.fail(
            f"the tests of the pages need a browser: none of {', '.join(NAMES)} is on the PATH. "
            "Run `make browser` as root, or: apt-get install chromium"
        )
    return found


@contextmanager
def open_browser() -> Iterator[Browser]:
    """Yields a browser without a window, with a profile of its own."""
    path = find_chromium()
    with sync_playwright() as playwright:
        # Generous, since the machine may be busy with other tests.
        browser = playwright.chromium.launch(
            executable_path=path, args=list(FLAGS), timeout=180_000
        )
        try:
            yield browser
        finally:
            browser.close()
