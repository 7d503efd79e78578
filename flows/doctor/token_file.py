"""The file with Ray's token: there, and for its owner's eyes alone."""

import os
import stat
from collections.abc import Mapping
from pathlib import Path

from flows.doctor.findings import Finding, broken, ok, warning

DEFAULT_PATH = Path("~/.ray/auth_token")


def check_token(environment: Mapping[str, str] = os.environ) -> Finding:
    """Tells whether a cluster's token can be found, and who may read it."""
    if environment.get("RAY_AUTH_TOKEN"):
        return ok("ray", "the token comes from RAY_AUTH_TOKEN")
    named = environment.get("RAY_AUTH_TOKEN_PATH", "")
    path = Path(named or DEFAULT_PATH).expanduser()
    if not path.is_file() or not path.stat().st_size:
        return _tell_missing(path, is_named=bool(named))
    if stat.S_IMODE(path.stat().st_mode) & 0o077:
        return broken(
            "ray",
            f"others than its owner may read {path}, and with the token run programs on the "
            "cluster",
            f"Run: chmod 600 {path}. If others have an account here, make a new token too",
        )
    return ok("ray", f"the token is in {path}, for its owner alone")


def _tell_missing(path: Path, *, is_named: bool) -> Finding:
    if is_named:
        return broken(
            "ray",
            f"RAY_AUTH_TOKEN_PATH names {path}, which is missing or empty",
            "Copy the cluster's token there (chmod 600), or unset RAY_AUTH_TOKEN_PATH",
        )
    return warning(
        "ray",
        "there is no token: neither RAY_AUTH_TOKEN nor RAY_AUTH_TOKEN_PATH is set, and there is no "
        f"{path}",
        "Let RAY_AUTH_TOKEN_PATH name the cluster's token file. A cluster that asks for none lets "
        "everybody run programs on it: start it with RAY_AUTH_MODE=token",
    )
