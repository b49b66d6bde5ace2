"""Which job a process belongs to, told from outside by keeper, session, parents and markers."""

from __future__ import annotations

import os
import pwd
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from airflow_provider_eaco.dispatch import process_owner
from airflow_provider_eaco.dispatch.claim import claim
from airflow_provider_eaco.dispatch.process_owner import NOBODY, ProcessOwners

RUN = ("job-of-owner-test", 7)
WAIT = "import sys; print(flush=True); sys.stdin.read()"


@pytest.fixture
def started() -> Iterator[list[subprocess.Popen[bytes]]]:
    """Processes that live until the test ends."""
    processes: list[subprocess.Popen[bytes]] = []
    yield processes
    for process in processes:
        process.communicate()


def start(started: list[subprocess.Popen[bytes]], **variables: str) -> int:
    """Start a process and return its pid once it runs its own code."""
    process = subprocess.Popen(
        [sys.executable, "-S", "-c", WAIT],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, **variables},
    )
    started.append(process)
    assert process.stdout is not None
    process.stdout.readline()
    return process.pid


def test_a_process_below_the_keeper_is_the_job_s(started: list[subprocess.Popen[bytes]]) -> None:
    """Whoever descends from the holder of the lease's claim belongs to that lease; nobody else does."""
    owners = ProcessOwners()
    pid = start(started)
    assert owners.owners_of([pid, 1], [RUN]) == {pid: None, 1: None}
    with claim(*RUN):
        assert owners.owners_of([pid, 1], [RUN]) == {pid: RUN, 1: None}
        # The job has just ended, and its process is still on the GPU.
        assert owners.owners_of([pid], []) == {pid: RUN}


def test_a_marked_process_is_the_job_s_wherever_it_is(started: list[subprocess.Popen[bytes]]) -> None:
    """Markers in the environment tell also where the keeper is gone."""
    pid = start(started, EACO_JOB_ID=RUN[0], EACO_LEASE_TOKEN=str(RUN[1]))
    assert ProcessOwners().owners_of([pid], []) == {pid: RUN}
    other = start(started, EACO_JOB_ID=RUN[0], EACO_LEASE_TOKEN="none")
    assert ProcessOwners().owners_of([other], []) == {other: None}


def test_a_process_that_has_ended_is_told_by_what_was_known(
    started: list[subprocess.Popen[bytes]],
) -> None:
    """The sample may be older than the end; a pid that was never seen here is left out."""
    owners = ProcessOwners()
    pid = start(started, EACO_JOB_ID=RUN[0], EACO_LEASE_TOKEN=str(RUN[1]))
    owners.owners_of([pid], [RUN])
    started.pop().communicate()
    assert owners.owners_of([pid], [RUN]) == {pid: RUN}
    assert owners.owners_of([pid], [RUN]) == {}
    assert owners.owners_of([2**22 - 3], [RUN]) == {}


def test_a_server_of_the_driver_is_nobody_s(
    started: list[subprocess.Popen[bytes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """MPS works for its clients and is no stranger."""
    monkeypatch.setattr(process_owner, "_is_server", lambda pid: True)
    pid = start(started)
    assert ProcessOwners().owners_of([pid], []) == {pid: NOBODY}


def test_c34_the_user_of_a_process_is_told_where_it_can_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """One's own name for one's own process, nothing of one that is not there; in a PID namespace of its own,
    where the driver's pids mean other processes, nothing at all.
    """
    pids = {os.getpid(), 2**22 - 3}
    here = Path("/proc/self/ns/pid").stat().st_ino
    monkeypatch.setattr(process_owner, "_HOST_NAMESPACE", here)
    assert ProcessOwners().users_of(pids) == {os.getpid(): pwd.getpwuid(os.getuid()).pw_name}
    monkeypatch.setattr(process_owner, "_HOST_NAMESPACE", here + 1)
    assert ProcessOwners().users_of(pids) == {}


def test_a_user_without_a_name_is_told_by_number() -> None:
    """Whoever has no entry on this machine is not made up."""
    assert process_owner._name_of(2**31 - 7) == f"uid {2**31 - 7}"
