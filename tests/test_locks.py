"""The locks of all supported versions of Python."""

import re
from pathlib import Path

import pytest

from flows.doctor.environment import PYTHONS
from tools.audit_lock import read_lock

ROOT = Path(__file__).parents[1]
FIRST = ROOT / "requirements.lock"
OTHERS = [ROOT / f"requirements-{major}.{minor}.lock" for major, minor in PYTHONS[1:]]
DIRECT = [
    re.split(r"[<>=\[]", line)[0].strip().lower().replace("_", "-")
    for line in (ROOT / "requirements.in").read_text(encoding="utf-8").splitlines()
    if line.strip() and not line.startswith("#")
]


def test_every_supported_python_has_a_lock():
    assert sorted(ROOT.glob("requirements*.lock")) == sorted([FIRST, *OTHERS])


@pytest.mark.parametrize("path", OTHERS, ids=lambda path: path.name)
def test_a_package_of_two_locks_has_the_same_version_in_both(path):
    # The stages of dvc.yaml depend on requirements.lock alone.
    first, other = read_lock(FIRST), read_lock(path)
    assert {
        name: version for name, version in other.items() if first.get(name, version) != version
    } == {}


@pytest.mark.parametrize("path", [FIRST, *OTHERS], ids=lambda path: path.name)
def test_a_lock_has_every_direct_dependency_and_no_address(path):
    assert set(DIRECT) - set(read_lock(path)) == set()
    text = path.read_text(encoding="utf-8")
    assert "://" not in text
    assert "--" not in text
