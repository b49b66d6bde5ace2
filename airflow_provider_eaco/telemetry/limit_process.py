"""Asks for power limits without waiting for the driver: one short-lived process for each request."""

from __future__ import annotations

import contextlib
import logging
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO

from airflow_provider_eaco.core.model.board_limits import LimitAnswer, LimitInForce, LimitRequest
from airflow_provider_eaco.core.model.placement import Placement
from airflow_provider_eaco.telemetry.limit_book import LimitBook, LimitBookError, in_force
from airflow_provider_eaco.telemetry.nvml_feed import command
from airflow_provider_eaco.telemetry.nvml_limits import answer_from, request_text

# A process that has not answered by then hangs in a call. What it had begun stands in the book.
TIMEOUT_S = 30.0

log = logging.getLogger(__name__)


class LimitProcess:
    """One request at a time, in a process that goes on when this one ends.

    :param book: the file of the limits in force, on this machine's disk.
    """

    def __init__(
        self,
        book: Path,
        *,
        timeout_s: float = TIMEOUT_S,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._book = LimitBook(book)
        self._timeout_s = timeout_s
        self._monotonic = monotonic
        self._process: subprocess.Popen[bytes] | None = None
        self._output: IO[bytes] | None = None
        self._begun_s = 0.0
        self._is_killed = False
        self._seen: tuple[object, Mapping[Placement, LimitInForce], frozenset[Placement]] | None = None

    @property
    def is_busy(self) -> bool:
        """Whether the answer to a request is still to be collected."""
        return self._process is not None

    def begin(self, request: LimitRequest) -> None:
        """Start on a request and return at once; does nothing while another one is being carried out.

        :raises OSError: if no process can be started.
        """
        if self._process is not None:
            return
        output = tempfile.TemporaryFile()  # noqa: SIM115 - closed when it was read
        try:
            process = subprocess.Popen(
                command("limit", str(self._book.path)),
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
        except OSError:
            output.close()
            raise
        self._process, self._output = process, output
        self._begun_s, self._is_killed = self._monotonic(), False
        if process.stdin is not None:
            # A child that died at once takes nothing: its end says so.
            with contextlib.suppress(BrokenPipeError), process.stdin as pipe:
                pipe.write(request_text(request).encode())

    def poll(self) -> LimitAnswer | None:
        """Return the answer once it is there, else ``None``; never waits."""
        process = self._process
        if process is None:
            return None
        code = process.poll()
        if code is None:
            if not self._is_killed and self._monotonic() - self._begun_s > self._timeout_s:
                self._is_killed = True
                process.kill()
            return None
        text = self._take_output()
        if self._is_killed:
            return LimitAnswer(problem=f"NVML has not answered for {self._timeout_s:.0f} s")
        try:
            return answer_from(text)
        except ValueError:
            return LimitAnswer(problem=f"the process that sets power limits has ended with code {code}")

    def finish(self, request: LimitRequest, timeout_s: float) -> LimitAnswer | None:
        """Carry a last request out, after the one that is under way; ``None`` if that takes longer.

        What was begun goes on all the same.
        """
        until_s = self._monotonic() + timeout_s
        while self._process is not None and self.poll() is None:
            if self._monotonic() >= until_s:
                return None
            time.sleep(0.02)
        self.begin(request)
        while (answer := self.poll()) is None:
            if self._monotonic() >= until_s:
                return None
            time.sleep(0.02)
        return answer

    def in_force(self) -> Mapping[Placement, LimitInForce]:
        """Return the limits that the boards are known to have, by whomever of this machine they were set."""
        return self._look()[1]

    def noted(self) -> frozenset[Placement]:
        """Return the placements on whose boards a limit of ours may be."""
        return self._look()[2]

    def _look(self) -> tuple[object, Mapping[Placement, LimitInForce], frozenset[Placement]]:
        signature = _signature(self._book.path)
        if self._seen is None or self._seen[0] != signature:
            try:
                limits = self._book.load()
            except LimitBookError as error:
                log.warning("The book of power limits cannot be used: %s", error)
                limits = {}
            noted = frozenset(one.placement for one in limits.values())
            self._seen = signature, in_force(limits), noted
        return self._seen

    def _take_output(self) -> str:
        output, self._process, self._output = self._output, None, None
        if output is None:
            return ""
        with output:
            output.seek(0)
            return output.read().decode(errors="replace")


def _signature(path: Path) -> tuple[int, int, int] | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_ino, status.st_mtime_ns, status.st_size
