"""Waiting for a lock that another process of this machine holds."""

from __future__ import annotations

import fcntl
import time

# The kernel has no wait for such a lock that ends by itself.
_RETRY_S = 0.005


def lock_within(descriptor: int, timeout_s: float) -> bool:
    """Lock the open file for this process alone, and return whether that came about within ``timeout_s``."""
    until_s = time.monotonic() + timeout_s
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= until_s:
                return False
            time.sleep(_RETRY_S)
        else:
            return True
