"""Messages between a dispatcher and its forkserver: one JSON object a line over a connected socket."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Mapping
from typing import Any

_READ_SIZE_BYTES = 65_536


class ChannelClosedError(ConnectionError):
    """The other side is gone; nothing more will come and nothing more can be sent."""


class Channel:
    """One end of the connection. Half a message that has arrived is kept for the next call."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._unread = b""

    def fileno(self) -> int:
        return self._connection.fileno()

    def send(self, message: Mapping[str, Any], timeout_s: float | None = None) -> None:
        """Hand the whole message to the other side's buffer.

        :param timeout_s: seconds to wait while that buffer is full; ``None`` waits for ever.
        :raises ChannelClosedError: if the other side is gone.
        :raises TimeoutError: if the time was not enough; the channel is then useless.
        """
        self._connection.settimeout(timeout_s)
        try:
            self._connection.sendall(json.dumps(message).encode("ascii") + b"\n")
        except (BrokenPipeError, ConnectionError) as error:
            raise ChannelClosedError(str(error)) from error

    def receive(self, timeout_s: float | None = None) -> dict[str, Any] | None:
        """Return the next message, or ``None`` when none is complete within ``timeout_s`` seconds.

        :raises ChannelClosedError: if the other side is gone and every complete message has been read.
        """
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while b"\n" not in self._unread:
            left_s = None if deadline is None else max(deadline - time.monotonic(), 0.0)
            self._connection.settimeout(left_s)
            try:
                chunk = self._connection.recv(_READ_SIZE_BYTES)
            except (TimeoutError, BlockingIOError):
                return None
            except ConnectionError as error:
                raise ChannelClosedError(str(error)) from error
            if not chunk:
                raise ChannelClosedError("the other side has closed the connection")
            self._unread += chunk
        line, _, self._unread = self._unread.partition(b"\n")
        message: dict[str, Any] = json.loads(line)
        return message

    def close(self) -> None:
        """Close this end; the other side sees the end of the stream."""
        self._connection.close()
