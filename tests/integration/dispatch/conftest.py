import contextlib
import json
import os
import signal
import time
import uuid
from pathlib import Path

import pytest

from airflow_provider_eaco.core.model.errors import NotReadyError
from airflow_provider_eaco.core.ports import LaunchOrder, ProcessState
from airflow_provider_eaco.dispatch.local import LocalDispatcher
from airflow_provider_eaco.dispatch.process_group import (
    ProcessReference,
    members_of,
    read_process,
    read_processes,
)

DEADLINE_S = 30.0


@pytest.fixture(autouse=True)
def jobs_on_path(monkeypatch):
    """The forkserver finds modules where its starter does."""
    monkeypatch.syspath_prepend(str(Path(__file__).parent))


class Rig:
    """A dispatcher, orders for it, and the ways to watch what it started."""

    def __init__(self):
        self.references: list[str] = []
        self.dispatcher = LocalDispatcher()

    def order(self, entry_point, payload="", *, job_id=None, token=1, **environment) -> LaunchOrder:
        """Return an order for one new job, or for the named one; plain names are functions of our module."""
        if entry_point.isidentifier():
            entry_point = f"dispatched_jobs:{entry_point}"
        return LaunchOrder(job_id or str(uuid.uuid4()), token, entry_point, str(payload), environment)

    def start(self, entry_point, payload="", **details) -> str:
        """Start an order and return its reference, however often the dispatcher says "not now"."""
        return self.start_order(self.order(entry_point, payload, **details))

    def start_order(self, order, by=None) -> str:
        reference = self.until(lambda: self.try_start(order, by), "a start")
        self.references.append(reference)
        return reference

    def try_start(self, order, by=None) -> str | None:
        """Return the reference of a start, or ``None`` for "not now"."""
        try:
            return (by or self.dispatcher).start(order)
        except NotReadyError:
            return None

    def until(self, condition, what="what was waited for"):
        """Return what the condition returns as soon as that is true."""
        deadline = time.monotonic() + DEADLINE_S
        while not (result := condition()):
            assert time.monotonic() < deadline, f"{what} did not come within {DEADLINE_S:.0f} s"
            time.sleep(0.01)
        return result

    def ended(self, reference, by=None) -> ProcessState:
        """Poll the group until it is gone and return its last state."""

        def gone():
            state = (by or self.dispatcher).poll(reference)
            return None if state.alive else state

        return self.until(gone, f"the end of {reference}")

    def pids_in(self, place):
        """Return the pids that a job writes into a file when it is under way."""
        return json.loads(self.until(lambda: place.exists() and place.read_text(), "the job's own code"))

    def alive(self, pids) -> list[int]:
        """Return those of the pids that are processes which still run."""
        return [pid for pid in pids if (found := read_process(pid)) is not None and found.alive]

    def kill_keeper(self, reference):
        """Kill the keeper of a group as nobody should, and return when it is gone."""
        keeper = ProcessReference.parse(reference).pid
        os.kill(keeper, signal.SIGKILL)
        self.until(lambda: self.alive([keeper]) == [], "the end of the keeper")

    def server(self):
        """Return the process of the forkserver."""
        return self.dispatcher._forkserver._process

    def clean_up(self):
        for reference in self.references:
            for pid in members_of(ProcessReference.parse(reference), read_processes()):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        self.dispatcher.close(5.0)


@pytest.fixture
def rig():
    """A dispatcher whose groups and forkserver are gone after the test."""
    made = Rig()
    yield made
    made.clean_up()
