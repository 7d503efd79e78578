"""A proxy on loopback, with which a test takes a server off the network and brings it back."""

import contextlib
import socket
import threading
from typing import Self


class Proxy:
    """Forwards connections from its own port to a server's."""

    def __init__(self, port: int) -> None:
        """Chooses an address.

        Args:
            port: that of the server.
        """
        self._server = ("127.0.0.1", port)
        self._open: list[socket.socket] = []
        self._listener = self._listen(0)
        self.port: int = self._listener.getsockname()[1]

    def go_away(self) -> None:
        """Closes the port and all connections: the next one is refused."""
        self._close(self._listener)
        while self._open:
            self._close(self._open.pop())

    def come_back(self) -> None:
        """Opens the port again."""
        self._listener = self._listen(self.port)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.go_away()

    def _listen(self, port: int) -> socket.socket:
        listener = socket.create_server(("127.0.0.1", port))
        threading.Thread(target=self._accept, args=(listener,), daemon=True).start()
        return listener

    def _accept(self, listener: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = listener.accept()
                server = socket.create_connection(self._server)
                self._open += [client, server]
                for source, target in ((client, server), (server, client)):
                    threading.Thread(target=self._copy, args=(source, target), daemon=True).start()

    def _copy(self, source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(2**16):
                target.sendall(data)
        self._close(source)
        self._close(target)

    def _close(self, which: socket.socket) -> None:
        # Wakes a thread that waits on it.
        with contextlib.suppress(OSError):
            which.shutdown(socket.SHUT_RDWR)
        which.close()
