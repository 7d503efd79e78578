"""The Prefect server: reachable, of the same version, and writable."""

import secrets

from flows.doctor.environment import find_version
from flows.doctor.findings import Finding, broken, ok, warning
from flows.doctor.nodes import CLOCK_BROKEN_SECONDS
from flows.doctor.request import DoctorRequest
from flows.servers.access import authorization
from flows.servers.network import Answer, NoAnswer, ask

_NUM_REQUESTS = 4
"""One after the other, so that each may take a fourth of the time."""
UP = "Start it with: dml up, or unset PREFECT_API_URL to run without a server"


def probe(request: DoctorRequest) -> list[Finding]:
    """Asks the server that runs would use; it gets a variable, which is removed again."""
    if not request.prefect_url:
        return [ok("prefect", "no server is set, a run brings its own (dml up starts one to stay)")]
    url, limit = request.prefect_url.rstrip("/"), request.timeout_seconds / _NUM_REQUESTS
    where = f"the server at {url} ({request.prefect_source})"
    try:
        health = ask("GET", f"{url}/health", timeout_seconds=limit)
        if health.status != 200:
            return [broken("prefect", f"{where} answers with {health.status}", UP)]
        findings = [_check_version(url, where, limit), _check_writing(url, where, limit)]
    except NoAnswer as error:
        return [broken("prefect", f"{where} does not answer: {error}", UP)]
    return [*findings, judge_clock(where, health)]


def _check_version(url: str, where: str, limit: float) -> Finding:
    answer = ask("GET", f"{url}/admin/version", timeout_seconds=limit, headers=authorization())
    here = find_version("prefect")
    if answer.status == 200 and isinstance(answer.content, str) and answer.content != here:
        return warning(
            "prefect",
            f"{where} is of version {answer.content}, and this machine has {here}",
            "Install the version of requirements.lock on both",
        )
    return ok("prefect", f"{where} answers, version {here}")


def _check_writing(url: str, where: str, limit: float) -> Finding:
    name = f"dml_doctor_{secrets.token_hex(4)}"
    content = {"name": name, "value": "may be removed"}
    made = ask(
        "POST",
        f"{url}/variables/",
        timeout_seconds=limit,
        content=content,
        headers=authorization(),
    )
    if made.status in (401, 403):
        return broken(
            "prefect",
            f"{where} asks who you are, and does not know you ({made.status})",
            "Set PREFECT_API_AUTH_STRING to user:password as the server has it",
        )
    if made.status not in (200, 201):
        return broken(
            "prefect",
            f"{where} takes nothing new: it answers {made.status} to a variable",
            "Look into its log (.dml/logs/prefect.log); its database may be full, locked or "
            "read-only",
        )
    removed = ask(
        "DELETE", f"{url}/variables/name/{name}", timeout_seconds=limit, headers=authorization()
    )
    if removed.status not in (200, 204):
        return warning(
            "prefect",
            f"{where} kept the variable {name} of this check ({removed.status})",
            f"Remove it: prefect variable unset {name}",
        )
    return ok("prefect", f"{where} can be written to")


def judge_clock(where: str, answer: Answer) -> Finding:
    """Tells whether a server's clock is with ours; schedules come due by the server's."""
    off = answer.clock_offset_seconds
    if abs(off) > CLOCK_BROKEN_SECONDS:
        way = "ahead of" if off > 0 else "behind"
        return broken(
            "clock",
            f"the clock of {where} is {abs(off):,.0f} s {way} this machine's",
            "Let both follow a time server: timedatectl set-ntp true (or chronyd)",
        )
    return ok("clock", f"{where} is with this machine's clock")
