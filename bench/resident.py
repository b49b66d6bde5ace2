"""What stands on a GPU in the heartbeat benchmark: a process that lives until it is killed."""

from __future__ import annotations

import signal


def stay(_payload: str) -> None:
    """Hold the GPU; end on a signal alone."""
    while True:
        signal.pause()
