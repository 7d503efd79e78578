"""Lists the locked packages with known vulnerabilities, by the OSV database.

    python -m tools.audit_lock                      # queries api.osv.dev
    python -m tools.audit_lock --database all.zip   # OSV's dump of all PyPI records, no network

Ends with 0 if none is known, with 1 if one is, and with 2 if the query failed: a failed query must
not look like a clean result.
"""

import argparse
import json
import sys
import urllib.error
import urllib.request
import zipfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

LOCKS = "requirements*.lock"
SERVICE = "https://api.osv.dev"
DUMP = "https://osv-vulnerabilities.storage.googleapis.com/PyPI/all.zip"
TIMEOUT_SECONDS = 60
BATCH = 500
"""Queries in one request; OSV accepts up to 1000."""

Findings = dict[str, list[str]]
"""Identifiers of known vulnerabilities by `name==version`."""


class AuditError(ValueError):
    """The query failed; the message says why and what to do."""


def read_lock(path: Path) -> dict[str, str]:
    """Returns the version of each locked package, by name."""
    lines = [line.partition("#")[0].strip() for line in path.read_text("utf-8").splitlines()]
    pairs = [line.partition("==") for line in lines if line]
    wrong = [name for name, equals, version in pairs if not equals or not version]
    if wrong or not pairs:
        raise AuditError(f"{path} must have lines name==version. Found {wrong[:3] or 'none'}.")
    return {canonicalize_name(name): version.split(";")[0].strip() for name, _, version in pairs}


def query_service(locked: dict[str, str], *, service: str) -> Findings:
    """Returns the vulnerabilities that a server with OSV's API knows."""
    names = list(locked)
    found: Findings = {}
    for start in range(0, len(names), BATCH):
        part = names[start : start + BATCH]
        queries = [
            {"package": {"name": name, "ecosystem": "PyPI"}, "version": locked[name]}
            for name in part
        ]
        answers = _post(f"{service}/v1/querybatch", {"queries": queries}).get("results", [])
        if len(answers) != len(part):
            raise AuditError(f"{service} answered {len(answers)} of {len(part)} queries.")
        for name, answer in zip(part, answers, strict=True):
            if ids := sorted(each["id"] for each in answer.get("vulns", [])):
                found[f"{name}=={locked[name]}"] = ids
    return found


def search_database(locked: dict[str, str], *, database: Path) -> Findings:
    """Returns the vulnerabilities in OSV's dump of all records; uses no network."""
    found: Findings = {}
    try:
        with zipfile.ZipFile(database) as archive:
            for name in archive.namelist():
                record = json.loads(archive.read(name))
                for package in _affected(record, locked):
                    found.setdefault(f"{package}=={locked[package]}", []).append(record["id"])
    except (OSError, zipfile.BadZipFile, ValueError, KeyError) as error:
        raise AuditError(f"{database} cannot be read as OSV's dump: {error}. Get {DUMP}") from error
    return {package: sorted(ids) for package, ids in sorted(found.items())}


def _affected(record: dict[str, Any], locked: dict[str, str]) -> Iterable[str]:
    if record.get("withdrawn"):
        return
    for affected in record.get("affected", []):
        package = affected.get("package", {})
        name = canonicalize_name(package.get("name", ""))
        if package.get("ecosystem") == "PyPI" and name in locked and _has(affected, locked[name]):
            yield name
            return


def _has(affected: dict[str, Any], version: str) -> bool:
    if version in affected.get("versions", []):
        return True
    spans = [r["events"] for r in affected.get("ranges", []) if r.get("type") == "ECOSYSTEM"]
    try:
        return any(_is_within(events, Version(version)) for events in spans)
    except InvalidVersion:
        return False


def _is_within(events: list[dict[str, str]], version: Version) -> bool:
    """Returns whether the last event at or before a version leaves it affected."""
    is_within = False
    for event in events:
        start, fixed, last = (event.get(k) for k in ("introduced", "fixed", "last_affected"))
        if start is not None and (start == "0" or version >= Version(start)):
            is_within = True
        if (fixed and version >= Version(fixed)) or (last and version > Version(last)):
            is_within = False
    return is_within


def _post(url: str, content: dict[str, Any]) -> dict[str, Any]:
    request = urllib.request.Request(  # noqa: S310 - the developer chooses the address
        url, data=json.dumps(content).encode(), headers={"Content-Type": "application/json"}
    )
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT_SECONDS) as answer:  # noqa: S310
            return dict(json.load(answer))
    except (OSError, ValueError) as error:
        raise AuditError(
            f"the lock was not audited: {url} does not answer ({error}). Try again with a "
            f"network that reaches it, or download {DUMP} elsewhere and run "
            "make audit DATABASE=all.zip"
        ) from error


def main(arguments: list[str] | None = None) -> int:
    """Prints the known vulnerabilities, and returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--lock", type=Path, nargs="+", default=sorted(Path().glob(LOCKS)))
    parser.add_argument("--service", default=SERVICE, help="address of an OSV API")
    parser.add_argument("--database", type=Path, help="OSV's dump of all PyPI records")
    chosen = parser.parse_args(arguments)
    try:
        # A package that several locks have is in the same version in all of them.
        locked = {
            name: version for path in chosen.lock for name, version in read_lock(path).items()
        }
        if chosen.database:
            found = search_database(locked, database=chosen.database)
        else:
            found = query_service(locked, service=chosen.service)
    except (AuditError, OSError) as error:
        print(f"audit: {error}", file=sys.stderr)
        return 2
    for package, ids in found.items():
        print(f"{package}: {', '.join(ids)}")
    print(f"{len(locked)} locked packages, {len(found)} of them with known vulnerabilities")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
