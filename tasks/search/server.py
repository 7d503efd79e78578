"""A small local page: drop a picture in, see the nearest images of an index.

It listens on loopback only. Every address begins with a random key, so that other users of the
machine and pages of other sites find nothing. Pictures are found by their position in the index and
encoded anew; no request names a file.
"""

import secrets
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import Mount, Route

from dml_core.data.image_decoding import BadImage
from dml_core.retrieval.folder_index import Neighbor
from dml_core.retrieval.image_files import explain_content
from dml_core.retrieval.thumbnails import LARGE_PX, SIDE_PX, thumbnail_of_file
from tasks.search.indexes import OpenIndex
from tasks.search.page import read_asset, render

if TYPE_CHECKING:
    import uvicorn
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

HOST = "127.0.0.1"
ALLOWED_HOSTS = (HOST, "localhost")
MAX_UPLOAD_BYTES = 32 * 2**20
MAX_NEIGHBORS = 200
DEFAULT_NEIGHBORS = 24
_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; img-src 'self' blob: data:; style-src 'self'; script-src 'self'; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-store",
}


class SearchApp:
    """The routes of the page."""

    def __init__(self, opened: OpenIndex, *, title: str) -> None:
        self._opened = opened
        self._title = title
        # One search at a time: torch uses all cores for it.
        self._lock = threading.Lock()

    def build(self, key: str) -> Starlette:
        """Returns the application below `/<key>`."""
        routes = [
            Route("/", self.show_page),
            Route("/search.css", self.show_style),
            Route("/serve.js", self.show_script),
            Route("/search", self.search, methods=["POST"]),
            Route("/similar/{position:int}", self.find_similar),
            Route("/picture/{position:int}", self.show_picture),
        ]
        return Starlette(
            routes=[Mount(f"/{key}", routes=routes)],
            middleware=[
                # Against pages that point their own name to this machine (DNS rebinding).
                Middleware(TrustedHostMiddleware, allowed_hosts=ALLOWED_HOSTS, www_redirect=False),
                Middleware(_SafeHeaders),
            ],
            exception_handlers={HTTPException: _say_error},
        )

    async def show_page(self, request: Request) -> Response:
        """The page itself."""
        index = self._opened.index
        root = str(index.root).encode("utf-8", "replace").decode()
        return HTMLResponse(
            render(
                "serve.html.jinja",
                title=self._title,
                model=self._opened.name,
                root=root,
                num_images=len(index),
                limit_mib=MAX_UPLOAD_BYTES // 2**20,
                default_count=DEFAULT_NEIGHBORS,
            )
        )

    async def show_style(self, request: Request) -> Response:
        """The page's style."""
        return Response(read_asset("search.css"), media_type="text/css")

    async def show_script(self, request: Request) -> Response:
        """The page's script."""
        return Response(read_asset("serve.js"), media_type="text/javascript")

    async def search(self, request: Request) -> Response:
        """Searches for the image file in the request's body."""
        _check_origin(request)
        count = _read_count(request)
        content = await _read_body(request)
        try:
            found = await run_in_threadpool(
                self._alone, lambda: self._opened.search_content(content, count)
            )
        except BadImage as error:
            reason = explain_content(content, error.reason)
            raise HTTPException(422, f"The picture {reason}.") from error
        return self._answer(found)

    async def find_similar(self, request: Request) -> Response:
        """Searches for an indexed image."""
        position, count = self._read_position(request), _read_count(request)
        found = await run_in_threadpool(
            self._alone, lambda: self._opened.search_indexed(position, count)
        )
        return self._answer(found)

    async def show_picture(self, request: Request) -> Response:
        """An indexed image as JPEG, small or large."""
        path = self._opened.index.file(self._read_position(request))
        side_px = LARGE_PX if request.query_params.get("size") == "large" else SIDE_PX
        content = await run_in_threadpool(thumbnail_of_file, path, side_px=side_px)
        if content is None:
            raise HTTPException(404, "The image is no longer there.")
        return Response(content, media_type="image/jpeg")

    def _alone(self, search: Callable[[], list[Neighbor]]) -> list[Neighbor]:
        with self._lock:
            return search()

    def _read_position(self, request: Request) -> int:
        position = int(request.path_params["position"])
        if position >= len(self._opened.index):
            raise HTTPException(404, "The index has no such image.")
        return position

    def _answer(self, found: list[Neighbor]) -> Response:
        neighbors = [
            {
                "position": each.position,
                "name": each.path.encode("utf-8", "replace").decode(),
                "score": self._opened.show_score(each.score),
            }
            for each in found
        ]
        return JSONResponse({"neighbors": neighbors})


def serve_index(
    opened: OpenIndex, *, title: str, port: int, on_ready: Callable[[str], None]
) -> None:
    """Serves the page on loopback until SIGINT or SIGTERM.

    Args:
        opened: the index.
        title: name of the study.
        port: 0 takes a free one.
        on_ready: called with the page's address.

    Raises:
        ValueError: where the port is taken.
    """
    import uvicorn

    key = secrets.token_urlsafe(16)
    app = SearchApp(opened, title=title).build(key)
    try:
        listening = socket.create_server((HOST, port))
    except OSError as error:
        raise ValueError(
            f"port {port} of {HOST} cannot be used: {error.strerror}. Choose another with --port, "
            "or --port 0 for a free one."
        ) from error
    with listening:
        config = uvicorn.Config(
            app,
            log_level="error",
            lifespan="off",
            server_header=False,
            # Open connections of a browser must not hold up the end.
            timeout_graceful_shutdown=2,
        )
        server = uvicorn.Server(config)
        # uvicorn's own handling ends the process by the signal once more; here Ctrl-C is the
        # usual end.
        server.capture_signals = lambda: _stopped_by_signals(server)  # type: ignore[method-assign]
        on_ready(f"http://{HOST}:{listening.getsockname()[1]}/{key}/")
        server.run(sockets=[listening])


@contextmanager
def _stopped_by_signals(server: "uvicorn.Server") -> Iterator[None]:
    """Ends a server by SIGINT or SIGTERM, after its answers under way."""
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = {number: signal.signal(number, server.handle_exit) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class _SafeHeaders:
    """Adds headers to every answer that keep other sites and stored copies away."""

    def __init__(self, app: "ASGIApp") -> None:
        self._app = app

    async def __call__(self, scope: "Scope", receive: "Receive", send: "Send") -> None:
        async def send_safely(message: "Message") -> None:
            if message["type"] == "http.response.start":
                added = [(name.lower().encode(), text.encode()) for name, text in _HEADERS.items()]
                message = {**message, "headers": [*message["headers"], *added]}
            await send(message)

        await self._app(scope, receive, send_safely)


async def _say_error(request: Request, error: Any) -> Response:
    return JSONResponse({"error": error.detail}, status_code=error.status_code)


def _check_origin(request: Request) -> None:
    """Refuses uploads from pages of other sites; programs send no origin."""
    origin = request.headers.get("origin")
    if origin is not None and origin != f"http://{request.headers['host']}":
        raise HTTPException(403, "Uploads come from this page only.")


def _read_count(request: Request) -> int:
    text = request.query_params.get("top", str(DEFAULT_NEIGHBORS))
    if not (text.isascii() and text.isdigit() and 1 <= int(text[:6]) <= MAX_NEIGHBORS):
        raise HTTPException(400, f"top must be a number from 1 to {MAX_NEIGHBORS}.")
    return int(text)


async def _read_body(request: Request) -> bytes:
    """Returns the body; one that is too large is refused before it is read whole."""
    too_large = HTTPException(413, f"A picture may have {MAX_UPLOAD_BYTES // 2**20} MiB.")
    length = request.headers.get("content-length", "0")
    if not length.isdigit() or int(length) > MAX_UPLOAD_BYTES:
        raise too_large
    content = bytearray()
    async for part in request.stream():
        content += part
        if len(content) > MAX_UPLOAD_BYTES:
            raise too_large
    if not content:
        raise HTTPException(400, "No picture was sent.")
    return bytes(content)
