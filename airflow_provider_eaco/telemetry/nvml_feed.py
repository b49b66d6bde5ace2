"""Keeps a sampling process running and hands on what it sees; nobody who asks for a reading waits for it."""

from __future__ import annotations

import contextlib
import logging
import os
import select
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Protocol

from airflow_provider_eaco.telemetry.nvml_sample import MachineSample

INTERVAL_S = 1.0
# A process that says nothing for this long hangs in a call: it is ended, and a new one is tried.
SILENCE_S = 30.0
# Between two processes, so that a machine without a working driver costs next to nothing.
RESTART_S = 15.0

# This package comes last on its path, so that it is found where it is not installed, and hides nothing.
_ROOT = str(Path(__file__).resolve().parents[2])
_CODE = (
    "import sys; sys.path.append(sys.argv[1]); "
    "from airflow_provider_eaco.telemetry.nvml_process import main; sys.exit(main(sys.argv[2:]))"
)

log = logging.getLogger(__name__)

Deliver = Callable[[MachineSample], None]


def command(*arguments: str) -> list[str]:
    """Return the command line of :func:`.nvml_process.main` with these arguments."""
    return [sys.executable, "-P", "-c", _CODE, _ROOT, *arguments]


class SampleSource(Protocol):
    """Where samples of this machine come from."""

    def start(self, deliver: Deliver) -> None:
        """Begin to call ``deliver`` with every sample, from any thread; return at once."""

    def refresh(self) -> None:
        """Deliver a sample now, if the source does not sample by itself; return at once."""

    def close(self) -> None:
        """Stop delivering."""


class SamplingProcess:
    """A child process that samples, watched by a thread of its own.

    It is started anew when it ends, and when it says nothing for ``silence_s``. One that hangs so deep in the
    driver that it cannot be killed gets no successor before it is gone.

    :param environment: variables beside those of this process.
    """

    def __init__(
        self,
        interval_s: float = INTERVAL_S,
        *,
        silence_s: float = SILENCE_S,
        restart_s: float = RESTART_S,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self._command = command("sample", str(interval_s))
        self._silence_s = silence_s
        self._restart_s = restart_s
        self._environment = dict(environment or {})
        self._closing = threading.Event()
        self._process: subprocess.Popen[bytes] | None = None
        self._thread: threading.Thread | None = None

    def start(self, deliver: Deliver) -> None:
        """Start thread and process; starting again changes nothing."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._watch, args=(deliver,), daemon=True)
            self._thread.start()

    def refresh(self) -> None:
        """Do nothing: it samples by itself."""

    def close(self) -> None:
        """End the process and wait a moment for it; one that cannot be killed is left behind."""
        self._closing.set()
        if self._process is not None:
            self._process.kill()
        if self._thread is not None:
            self._thread.join(5.0)

    def _watch(self, deliver: Deliver) -> None:
        while not self._closing.is_set():
            try:
                self._run_once(deliver)
            except OSError as error:  # no process could be started; perhaps later
                log.warning("The GPU sampler cannot be started: error=%s", error)
            self._closing.wait(self._restart_s)

    def _run_once(self, deliver: Deliver) -> None:
        """Run one process to its end, or to its silence."""
        process = subprocess.Popen(
            self._command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**os.environ, **self._environment},
            start_new_session=True,
        )
        self._process = process
        if self._closing.is_set():
            process.kill()
        with process:
            told = self._listen(process, deliver)
            process.kill()
            self._bury(process)
        if told is None and not self._closing.is_set():
            self._tell(f"the process that reads NVML has ended with code {process.returncode}", deliver)

    def _listen(self, process: subprocess.Popen[bytes], deliver: Deliver) -> str | None:
        """Hand on what the process says until it ends or falls silent; return the last problem told."""
        if process.stdout is None:  # pragma: no cover - it was asked for
            return None
        problem = None
        handle = process.stdout.fileno()
        rest = b""
        while select.select([handle], [], [], self._silence_s)[0]:
            data = os.read(handle, 2**20)
            if not data:
                return problem
            *lines, rest = (rest + data).split(b"\n")
            for line in lines:
                try:
                    sample = MachineSample.from_line(line)
                except ValueError as error:
                    log.warning("A line of the GPU sampler cannot be read: error=%s", error)
                    continue
                problem = sample.problem
                self._hand_on(sample, deliver)
        return self._tell(f"NVML has not answered for {self._silence_s:.0f} s", deliver)

    def _tell(self, problem: str, deliver: Deliver) -> str:
        self._hand_on(MachineSample(time.time(), time.monotonic(), problem=problem), deliver)
        return problem

    def _hand_on(self, sample: MachineSample, deliver: Deliver) -> None:
        try:
            deliver(sample)
        except Exception:
            # One sample that cannot be used must not end the sampling.
            log.exception("A sample of the GPUs cannot be used")

    def _bury(self, process: subprocess.Popen[bytes]) -> None:
        """Wait for the killed process; one in an uninterruptible call may take until the driver lets go."""
        while not self._closing.is_set():
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(1.0)
                return
