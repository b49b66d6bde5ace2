import contextlib
import os
import signal
import time
import uuid
from pathlib import Path

import pytest

from airflow_provider_eaco.core.ports import LaunchOrder
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


@pytest.fixture
def until():
    """Return a function that waits until its argument returns something true, and returns that."""

    def wait(condition, what="what was waited for"):
        deadline = time.monotonic() + DEADLINE_S
        while not (result := condition()):
            assert time.monotonic() < deadline, f"{what} did not come within {DEADLINE_S:.0f} s"
            time.sleep(0.01)
        return result

    return wait


@pytest.fixture
def order():
    """Build orders for one new job, or for one that is named, whose output goes to ``log``."""

    def build(entry_point, payload="", *, job_id=None, token=1, **environment):
        if ":" not in entry_point and entry_point.isidentifier():
            entry_point = f"dispatched_jobs:{entry_point}"
        return LaunchOrder(job_id or str(uuid.uuid4()), token, entry_point, str(payload), environment)

    return build


@pytest.fixture
def references():
    """Collect the references of a test; what lives of them at its end is killed."""
    started: list[str] = []
    yield started
    for reference in started:
        for pid in members_of(ProcessReference.parse(reference), read_processes()):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


@pytest.fixture
def dispatcher(references):
    """A dispatcher whose groups and forkserver are gone after the test."""

    class Recording(LocalDispatcher):
        def start(self, order):
            reference = super().start(order)
            references.append(reference)
            return reference

    made = Recording()
    yield made
    made.close(5.0)


@pytest.fixture
def ended(dispatcher, until):
    """Return a function that polls a reference until its group is gone, and returns the last state."""

    def wait(reference, by=dispatcher):
        def gone():
            state = by.poll(reference)
            return None if state.alive else state

        return until(gone, f"the end of {reference}")

    return wait


@pytest.fixture
def alive():
    """Tell which of the pids are processes that still run."""

    def living(pids):
        return [pid for pid in pids if (found := read_process(pid)) is not None and found.alive]

    return living
