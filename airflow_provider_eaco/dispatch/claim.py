"""At most one process group per lease, whoever starts it and whoever died in between.

A keeper claims its lease by listening on an abstract socket whose name follows from job and token. The
kernel lets one process at a time hold a name, frees it with the process, and tells who listens. So a start
that was cut short, by a killed scheduler say, is found again and never done twice.
"""

from __future__ import annotations

import hashlib
import socket
import struct

_CREDENTIALS = struct.Struct("3i")  # struct ucred: pid, uid, gid


class LeaseClaimedError(OSError):
    """Another process group holds this lease already."""


def claim(job_id: str, token: int) -> socket.socket:
    """Return a listening, non-blocking socket that holds the claim until every copy of it is closed.

    Whoever holds it has to accept (and drop) what connects, since a full queue would hide the holder.

    :raises LeaseClaimedError: if somebody else holds it.
    """
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        listener.bind(_address(job_id, token))
    except OSError as error:
        listener.close()
        raise LeaseClaimedError(error.errno, f"job {job_id} runs already under lease {token}") from error
    listener.listen()
    listener.setblocking(False)
    return listener


def claimant(job_id: str, token: int) -> int | None:
    """Return the pid of the process that holds the claim, or ``None`` when nobody does."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)
        try:
            probe.connect(_address(job_id, token))
        except ConnectionRefusedError:
            return None
        credentials = probe.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    pid: int = _CREDENTIALS.unpack(credentials)[0]
    return pid or None  # 0: of another pid namespace


def _address(job_id: str, token: int) -> bytes:
    # Abstract names hold at most 107 bytes, job ids may be longer.
    return b"\0eaco-lease/" + hashlib.sha256(f"{token}:{job_id}".encode()).hexdigest().encode("ascii")
