"""Components as processes, and the end of everything that they leave behind."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from airflow_provider_eaco.dispatch.process_group import (
    Process,
    descendants_of,
    read_process,
    read_processes,
    send_signal,
)

_POLL_S = 0.05


class Component:
    """One long-running command in a session of its own, whose output goes to a file.

    :param name: how it is called in messages; its log is ``NAME.log`` in ``log_folder``.
    """

    def __init__(
        self, name: str, command: Sequence[str], environment: Mapping[str, str], log_folder: Path
    ) -> None:
        self.name = name
        self.log_file = log_folder / f"{name}.log"
        with self.log_file.open("ab") as log:
            # A session of its own: Ctrl-C in a terminal is for whoever runs the harness, who then stops us.
            self._process = subprocess.Popen(
                list(command),
                env=dict(environment),
                cwd=log_folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        """The code with which it ended, negative for a signal, or ``None`` while it runs."""
        return self._process.poll()

    def signal(self, number: signal.Signals) -> None:
        """Signal the component's own process; its children are not asked."""
        if self._process.poll() is None:
            self._process.send_signal(number)

    def wait(self, timeout_s: float) -> bool:
        """Return whether it has ended within ``timeout_s`` seconds."""
        try:
            self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return False
        return True

    def last_lines(self, count: int = 30) -> str:
        """Return the end of its output."""
        lines = self.log_file.read_text(encoding="utf-8", errors="replace").splitlines()
        return "\n".join(lines[-count:])


class ProcessSweep:
    """Finds and ends all processes that descend from the components of one Airflow.

    They are known by any of: below a component, in a component's session, ``AIRFLOW_HOME`` of this Airflow in
    their environment, below one of those, or seen so before. Several are needed: a killed component leaves
    orphans, jobs lead sessions of their own, and a process that sets its title wipes its environment.
    """

    def __init__(self, home: Path) -> None:
        self._markers = {_marker(home)}
        self._sessions: set[int] = set()
        self._seen: dict[int, Process] = {}

    def add_home(self, home: Path) -> None:
        """Count what has this home among the processes to end."""
        self._markers.add(_marker(home))

    def add(self, component: Component) -> None:
        """Count what this component starts among the processes to end."""
        self._sessions.add(component.pid)

    def look(self) -> list[Process]:
        """Return all living processes of this Airflow, and remember them."""
        processes = read_processes()
        roots = {
            process.pid
            for process in processes.values()
            if process.session in self._sessions
            or process.is_same(self._seen.get(process.pid))
            or self._is_marked(process)
        }
        found = [processes[pid] for pid in roots | descendants_of(roots, processes)]
        self._seen = {
            process.pid: process for process in found if process.alive and process.pid != os.getpid()
        }
        return list(self._seen.values())

    def end(self, timeout_s: float) -> list[Process]:
        """Send SIGKILL to all until none is left; return who is left after ``timeout_s`` seconds."""
        deadline = time.monotonic() + timeout_s
        while left := self.look():
            for process in left:
                send_signal(process, signal.SIGKILL)
            if time.monotonic() > deadline:
                return [process for process in left if process.is_same(read_process(process.pid))]
            time.sleep(_POLL_S)
        return []

    def _is_marked(self, process: Process) -> bool:
        try:
            variables = Path(f"/proc/{process.pid}/environ").read_bytes().split(b"\0")
        except OSError:  # gone in the meantime, or of another user
            return False
        return not self._markers.isdisjoint(variables)


def _marker(home: Path) -> bytes:
    return os.fsencode(f"AIRFLOW_HOME={home}")
