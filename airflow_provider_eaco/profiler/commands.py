"""Training commands as processes, and the steps that they tell by a line of output."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

# What a command prints when a step is done, at the start of a line; another pattern can be named.
STEP_PATTERN = r"eaco-step\b"
KILL_AFTER_S = 10.0
# The last lines of a command's output, for whoever asks why it ended.
KEPT_LINES = 10


@dataclass(frozen=True, slots=True)
class Command:
    """One training: its family in the profile, and the words that start it."""

    family: str
    words: tuple[str, ...]


class RunningCommand:
    """A command in a process group of its own on one GPU; its steps are timed as their lines arrive."""

    def __init__(
        self, command: Command, environment: Mapping[str, str], pattern: str, clock: Callable[[], float]
    ) -> None:
        self.family = command.family
        self._matches = re.compile(pattern).match
        self._clock = clock
        self._lock = threading.Lock()
        self._steps: list[float] = []
        self._tail: list[str] = []
        self._process = subprocess.Popen(
            command.words,
            env={**os.environ, **environment},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
        )
        self._reader = threading.Thread(target=self._read, name=f"steps of {command.family}", daemon=True)
        self._reader.start()

    def steps_s(self) -> Sequence[float]:
        """Return the instants at which steps were done so far, on the clock."""
        with self._lock:
            return tuple(self._steps)

    def exit_code(self) -> int | None:
        """Return the exit code, ``None`` while it runs."""
        return self._process.poll()

    def output(self) -> str:
        """Return the last lines that it printed."""
        with self._lock:
            return "\n".join(self._tail)

    def end(self) -> None:
        """End the whole process group; it is gone afterwards."""
        for number in (signal.SIGTERM, signal.SIGKILL):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, number)
            try:
                self._process.wait(KILL_AFTER_S)
            except subprocess.TimeoutExpired:
                continue
            break
        # What the command has left behind in its group.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._reader.join(KILL_AFTER_S)
        if self._process.stdout is not None and not self._reader.is_alive():
            self._process.stdout.close()

    def _read(self) -> None:
        stream = self._process.stdout
        if stream is None:  # pragma: no cover - it was asked for
            return
        for line in stream:
            now_s = self._clock()
            with self._lock:
                if self._matches(line):
                    self._steps.append(now_s)
                self._tail = [*self._tail, line.rstrip()][-KEPT_LINES:]
