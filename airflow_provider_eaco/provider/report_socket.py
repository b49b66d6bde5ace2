"""Reports of the processes that a task starts itself, through a local socket to the one that holds the task.

An open ``training_run`` in a task serves a Unix socket and names it in ``EACO_REPORT_SOCKET``. A
``training_run`` in a child process (a rank of distributed training) finds it there; a shell uses the command

    python -m airflow_provider_eaco.provider.report_socket start    # prints: units_done checkpoint
    python -m airflow_provider_eaco.provider.report_socket begin
    python -m airflow_provider_eaco.provider.report_socket report --checkpoint PATH

whose ``report`` exits with 75 when the process has to end because the task gives its GPUs up. Requests and
answers are one JSON object a line. Of several ranks the one with ``RANK`` 0 (or without) counts the units and
names the checkpoint; the others get the same answer for the same unit, so that all leave together.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import logging
import os
import shutil
import socket
import socketserver
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any

from airflow_provider_eaco.provider.out_of_memory import is_out_of_memory
from airflow_provider_eaco.provider.unit_channel import StartState, TaskChannel

SOCKET_VARIABLE = "EACO_REPORT_SOCKET"
YIELD_EXIT_CODE = 75  # EX_TEMPFAIL of sysexits.h: try again later

# The kernel's limit for the path of a Unix socket is 108 bytes; a deep TMPDIR can exceed it.
_LONGEST_PATH = 100
_CONNECT_S = 10.0

log = logging.getLogger(__name__)


class ReportServer:
    """Serves a task's channel to its child processes for as long as its training run is open."""

    def __init__(self, channel: TaskChannel) -> None:
        self._channel = channel
        self._turn = threading.Condition()
        self._closing = False
        # Whether the task leaves after the unit, for the ranks that ask later.
        self._leaving: dict[int, bool] = {}
        parent = tempfile.gettempdir() if len(tempfile.gettempdir()) < _LONGEST_PATH - 30 else "/tmp"  # noqa: S108 - mkdtemp's folder is private
        self._folder = Path(tempfile.mkdtemp(prefix="eaco-", dir=parent))
        self._address = str(self._folder / "report")
        self._previous = os.environ.get(SOCKET_VARIABLE)
        owner = self

        class Handler(socketserver.StreamRequestHandler):
            def handle(self) -> None:
                for line in self.rfile:
                    self.wfile.write(json.dumps(owner.answer(line)).encode() + b"\n")

        class Server(socketserver.ThreadingUnixStreamServer):
            daemon_threads = True
            block_on_close = False

        self._server = Server(self._address, Handler)
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(0.1,), name="eaco-reports", daemon=True
        )

    @classmethod
    def open(cls, channel: TaskChannel) -> ReportServer | None:
        """Return a running server named in the environment; ``None`` where no socket can be made."""
        try:
            server = cls(channel)
        except OSError as error:
            log.warning("Child processes of this task cannot report: %s", error)
            return None
        server._thread.start()
        os.environ[SOCKET_VARIABLE] = server._address
        return server

    def close(self) -> None:
        """Stop serving; children that still ask are told to go on by themselves."""
        with self._turn:
            self._closing = True
            self._turn.notify_all()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
        shutil.rmtree(self._folder, ignore_errors=True)
        if self._previous is None:
            os.environ.pop(SOCKET_VARIABLE, None)
        else:
            os.environ[SOCKET_VARIABLE] = self._previous

    def answer(self, line: bytes) -> dict[str, Any]:
        """Return the answer to one request; what cannot be read is answered with ``error``."""
        try:
            request = json.loads(line)
            operation, rank, unit = request["do"], int(request.get("rank", 0)), int(request.get("unit", -1))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            return {"error": f"not a request: {error!r}"}
        if operation == "start":
            return self._start(request)
        if operation == "begin":
            return self._begin(rank, unit)
        if operation == "complete":
            return self._complete(rank, unit, request.get("checkpoint"))
        if operation == "out of memory":
            self._channel.note_out_of_memory()
            return {}
        return {"error": f"unknown request {operation!r}"}

    def _start(self, request: dict[str, Any]) -> dict[str, Any]:
        record = self._channel.record
        with self._turn:
            total = request.get("units_total")
            if record.units_total is None and isinstance(total, int):
                record.units_total = total
            return {"units_done": record.units_done, "checkpoint": record.checkpoint}

    def _begin(self, rank: int, unit: int) -> dict[str, Any]:
        with self._turn:
            if rank == 0:
                self._channel.begin(self._channel.record.units_done if unit < 0 else unit)
            return {}

    def _complete(self, rank: int, unit: int, checkpoint: str | None) -> dict[str, Any]:
        with self._turn:
            if rank == 0:
                done = self._channel.record.units_done
                index = done if unit < 0 else unit
                if index == done:
                    self._channel.complete(index, checkpoint)
                    self._leaving[index] = self._channel.yielded
                    self._turn.notify_all()
                return {"leave": self._leaving.get(index, False)}
            # A rank that came late finds a task that has given way already: its unit never comes.
            self._turn.wait_for(lambda: unit in self._leaving or self._channel.yielded or self._closing)
            return {"leave": self._leaving.get(unit, self._channel.yielded)}


class SocketChannel:
    """A child process of a task: reports to the process that holds the task."""

    def __init__(self, connection: socket.socket, unit: str, units_total: int | None) -> None:
        self._connection = connection
        self._stream = connection.makefile("rwb")
        self._unit = unit
        self._units_total = units_total
        self._rank = _rank_of(os.environ.get("RANK"))
        #: Whether the task gives its GPUs up after the unit that was completed last.
        self.yielded = False
        self._lost = False

    @classmethod
    def connect(
        cls, address: str, unit: str = "epoch", units_total: int | None = None
    ) -> SocketChannel | None:
        """Return the channel to the task's process, or ``None`` if nobody serves ``address``."""
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        connection.settimeout(_CONNECT_S)
        try:
            connection.connect(address)
        except OSError as error:
            connection.close()
            log.warning("Units are not reported: nobody answers at %s: %s", address, error)
            return None
        # A unit's answer may take as long as the unit on a simulated device.
        connection.settimeout(None)
        return cls(connection, unit, units_total)

    def start(self) -> StartState:
        answer = self._ask({"do": "start", "unit_name": self._unit, "units_total": self._units_total})
        return StartState(int(answer.get("units_done", 0)), answer.get("checkpoint"))

    def begin(self, unit_index: int) -> None:
        self._ask({"do": "begin", "unit": unit_index})

    def complete(self, unit_index: int, checkpoint: str | None) -> None:
        answer = self._ask({"do": "complete", "unit": unit_index, "checkpoint": checkpoint})
        self.yielded = answer.get("leave") is True

    def leave_if_yielded(self) -> None:
        """End this process if the task gives its GPUs up; its parent then leaves by reschedule.

        :raises SystemExit: with code 0, so that launchers do not take it for a crash.
        """
        if self.yielded:
            self.close()
            raise SystemExit(0)

    def leave_if_out_of_memory(self, error: BaseException) -> None:
        """Tell the process that holds the task, which decides when it meets the consequence."""
        if is_out_of_memory(error):
            self._ask({"do": "out of memory"})

    def finish(self, units_done: int) -> int:
        self.close()
        return units_done

    def close(self) -> None:
        """Close the connection; the task goes on."""
        with contextlib.suppress(OSError):
            self._stream.close()
        self._connection.close()

    def _ask(self, request: dict[str, Any]) -> dict[str, Any]:
        if self._lost:
            return {}
        try:
            self._stream.write(json.dumps({**request, "rank": self._rank}).encode() + b"\n")
            self._stream.flush()
            answer = json.loads(self._stream.readline())
        except (OSError, ValueError) as error:
            self._lost = True
            self.close()
            log.warning("The training goes on without reports: %s", error)
            return {}
        if "error" in answer:
            log.warning("The report was refused: %s", answer["error"])
        return dict(answer)


def _rank_of(text: str | None) -> int:
    return int(text) if text and text.isdecimal() else 0


def main(arguments: list[str] | None = None) -> int:
    """Report from a shell; return the exit code: 0, 75 to end the process, 2 if nobody listens."""
    parser = argparse.ArgumentParser(
        prog="report_socket", description="Report units of a training from a shell."
    )
    verbs = parser.add_subparsers(dest="verb", required=True)
    verbs.add_parser("start", help="print how many units are done and where the checkpoint is")
    verbs.add_parser("begin", help="tell that work on the next unit begins")
    report = verbs.add_parser("report", help="tell that a unit is done; exit 75 if the process has to end")
    report.add_argument("--checkpoint", help="where the state after this unit has been saved")
    chosen = parser.parse_args(arguments)
    channel = SocketChannel.connect(os.environ.get(SOCKET_VARIABLE, ""))
    if channel is None:
        sys.stderr.write(f"no task listens: {SOCKET_VARIABLE} names no socket of an open training_run\n")
        return 2
    with contextlib.closing(channel):
        if chosen.verb == "start":
            state = channel.start()
            sys.stdout.write(f"{state.units_done} {state.checkpoint or ''}".rstrip() + "\n")
        elif chosen.verb == "begin":
            channel.begin(-1)
        else:
            channel.complete(-1, chosen.checkpoint)
            return YIELD_EXIT_CODE if channel.yielded else 0
    return 0


if __name__ == "__main__":
    sys.exit(main())
