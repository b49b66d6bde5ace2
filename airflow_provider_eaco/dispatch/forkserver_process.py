"""The forkserver as its starter sees it: a child process and our end of the connection to it."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import airflow_provider_eaco
from airflow_provider_eaco.dispatch.channel import Channel, ChannelClosedError

_COMMAND = (
    "import sys; sys.path.insert(0, {root!r}); "
    "from airflow_provider_eaco.dispatch.forkserver import main; main({fd}, {parent})"
)
# SIGKILL ends a process at once unless the kernel keeps it, which must not keep us.
_END_WAIT_S = 1.0


class ForkserverProcess:
    """A forkserver that has been started and may still be importing; ``is_ready`` is set by its owner.

    :param preload: modules that it imports before it says that it is ready.
    :param keeper_timeout_s: seconds after which it ends a keeper that does not report.
    :raises OSError: if no process can be started.
    :raises ChannelClosedError: if it ended at once.
    """

    def __init__(self, preload: Sequence[str], keeper_timeout_s: float) -> None:
        self.is_ready = False
        self._owner_pid = os.getpid()
        ours, theirs = socket.socketpair()
        root = str(Path(airflow_provider_eaco.__file__).parent.parent)
        command = _COMMAND.format(root=root, fd=theirs.fileno(), parent=os.getpid())
        with theirs:
            try:
                # A session of its own: Ctrl-C in the scheduler's terminal is for the scheduler alone.
                self._process = subprocess.Popen(
                    [sys.executable, "-c", command],
                    pass_fds=[theirs.fileno()],
                    stdin=subprocess.DEVNULL,
                    start_new_session=True,
                )
            except OSError:
                ours.close()
                raise
        self.channel = Channel(ours)
        setup = {"sys_path": sys.path, "modules": list(preload), "keeper_timeout_s": keeper_timeout_s}
        try:
            self.channel.send(setup)
        except ChannelClosedError:
            self.close(0.0)
            raise

    @property
    def is_ours(self) -> bool:
        """Whether this process has started it; a fork of that one must not speak on the same connection."""
        return self._owner_pid == os.getpid()

    def is_usable(self) -> bool:
        """Whether it lives and is ours."""
        return self.is_ours and self._process.poll() is None

    def close(self, timeout_s: float) -> None:
        """Close the connection, and end the process if it has not ended within ``timeout_s`` seconds."""
        self.channel.close()
        if not self.is_ours:
            return
        try:
            self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self._process.kill()  # not collected yet, so that its pid is still its own
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(_END_WAIT_S)
