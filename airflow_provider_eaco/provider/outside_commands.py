"""Commands of the site's operator, run beside the heartbeat: begun, looked at, and ended in time."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import IO

# Of what a command has said, so much at its end goes into the log.
_MOST_BYTES = 500


@dataclass(frozen=True, slots=True)
class Finished:
    """What became of a command: whether it left with 0, and why not, with the end of what it said."""

    succeeded: bool
    cause: str = ""


@dataclass(slots=True)
class _Running:
    process: subprocess.Popen[bytes]
    output: IO[bytes]
    begun_s: float
    timeout_s: float
    is_ended: bool = False


class OutsideCommands:
    """At most one command for each name; none is waited for."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._running: dict[str, _Running] = {}

    def is_running(self, name: str) -> bool:
        """Tell whether a command of this name was begun whose end :meth:`finished` has not told yet."""
        return name in self._running

    def begin(self, name: str, command: Sequence[str], timeout_s: float) -> str | None:
        """Run a program with its arguments, without a shell; return why it cannot be begun, if it cannot.

        It goes on when this process ends.
        """
        output = tempfile.TemporaryFile()  # noqa: SIM115 - closed when it was read
        try:
            process = subprocess.Popen(
                list(command),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        except (OSError, ValueError) as error:
            output.close()
            return str(error)
        self._running[name] = _Running(process, output, self._monotonic(), timeout_s)
        return None

    def finished(self, name: str) -> Finished | None:
        """Return what became of the command once it has ended; one beyond its time is ended, with all that it
        has started.
        """
        running = self._running.get(name)
        if running is None:
            return None
        code = running.process.poll()
        if code is None:
            if not running.is_ended and self._monotonic() - running.begun_s > running.timeout_s:
                running.is_ended = True
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(running.process.pid, signal.SIGKILL)
            return None
        del self._running[name]
        said = _end_of(running.output)
        if running.is_ended:
            return Finished(False, f"it did not end within {running.timeout_s:g} s{said}")
        return Finished(True) if code == 0 else Finished(False, f"it ended with code {code}{said}")


def _end_of(output: IO[bytes]) -> str:
    with output:
        size = output.seek(0, os.SEEK_END)
        output.seek(max(0, size - _MOST_BYTES))
        text = output.read().decode(errors="replace").strip()
    return f": {text}" if text else ""
