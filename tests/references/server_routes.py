"""Every route of a Prefect and an MLflow server, and requests to them, for tests of access."""

import base64
import json
import re
import ssl
import urllib.error
import urllib.request
from typing import Any

Route = tuple[str, str]
"""Address and method."""


def ask(
    url: str,
    *,
    method: str = "GET",
    sign_in_as: str | None = None,
    trusts: ssl.SSLContext | None = None,
    **headers: str,
) -> tuple[int, Any, bytes]:
    """Returns the HTTP status, the headers and the content of an answer."""
    sent = {"Content-Type": "application/json", **headers}
    if sign_in_as:
        sent["Authorization"] = f"Basic {base64.b64encode(sign_in_as.encode()).decode()}"
    data = b"{}" if method in ("POST", "PUT", "PATCH") else None
    request = urllib.request.Request(url, data=data, headers=sent, method=method)  # noqa: S310
    handlers = [urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=trusts)]
    opener = urllib.request.build_opener(*handlers)
    try:
        with opener.open(request, timeout=30) as answer:
            return answer.status, answer.headers, answer.read()
    except urllib.error.HTTPError as error:
        return error.code, error.headers, error.read()


def prefect_routes(address: str, password: str, **options: Any) -> list[Route]:
    """Returns the routes of a Prefect server, without those that report its health."""
    status, _, content = ask(f"{address}/api/openapi.json", sign_in_as=f"dml:{password}", **options)
    assert status == 200
    return [
        (f"{address}/api{_fill_in(path.removeprefix('/api'))}", method.upper())
        for path, methods in json.loads(content)["paths"].items()
        for method in methods
        if path.removeprefix("/api") not in ("/health", "/ready")
    ]


def mlflow_routes(address: str) -> list[Route]:
    """Returns the routes of an MLflow server, with those of its pages."""
    from mlflow.server.handlers import get_endpoints

    found = [("/", "GET"), ("/version", "GET"), ("/graphql", "POST"), ("/get-artifact", "GET")]
    found += [(path, method) for path, _, methods in get_endpoints() for method in methods]
    return [(f"{address}{_fill_in(path)}", method) for path, method in found]


def find_open(routes: list[Route], *, sign_in_as: str | None = None, **options: Any) -> list[Route]:
    """Returns the routes that answer; MLflow's pages read `server-info` before they sign in."""
    return [
        (url, method)
        for url, method in routes
        if ask(url, method=method, sign_in_as=sign_in_as, **options)[0] not in (401, 403)
        and not url.endswith("/server-info")
    ]


def _fill_in(path: str) -> str:
    """Returns a route with a value for each of its variables."""
    return re.sub(r"\{[^}]*\}|<[^>]*>", "00000000-0000-0000-0000-000000000000", path)
