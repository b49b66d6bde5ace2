"""A supervisor that has no socket left to wait for still sees the end of its task's process."""

from __future__ import annotations

import selectors
import socket
import subprocess
import sys
import time

import psutil
import pytest
from airflow.sdk.execution_time import supervisor

from airflow_provider_eaco.provider.compat import notice_ends_at_once

LONG_S = 3600.0


@pytest.fixture
def watched(monkeypatch):
    """A supervisor of a process that waits for its input; afterwards the class is as it was."""
    monkeypatch.setattr(
        supervisor.WatchedSubprocess,
        "_service_subprocess",
        supervisor.WatchedSubprocess._service_subprocess,
    )
    notice_ends_at_once()
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    watched = object.__new__(supervisor.WatchedSubprocess)
    watched.selector = selectors.DefaultSelector()
    watched._process = supervisor.PsutilTracker(psutil.Process(process.pid))
    watched._exit_code = None
    watched._process_exit_monotonic = None
    yield watched, process
    watched.selector.close()
    process.kill()
    process.wait()
    process.stdin.close()


def test_without_a_socket_it_looks_at_the_process_again_and_again(watched):
    """With no socket open it returns while the process lives, and with its exit code once that is gone."""
    supervised, process = watched
    assert supervised._service_subprocess(max_wait_time=LONG_S) is None
    process.stdin.write(b"\n")
    process.stdin.close()
    deadline = time.monotonic() + 60
    while (code := supervised._service_subprocess(max_wait_time=LONG_S)) is None:
        assert time.monotonic() < deadline
    assert code == 0


def test_an_open_socket_is_waited_for_as_before(watched):
    """With a socket open the wait is Airflow's own, and ends with the socket's event."""
    supervised, _ = watched
    ours, theirs = socket.socketpair()
    with ours, theirs:
        seen = []
        handlers = (lambda sock: seen.append(sock.recv(1)) or True, lambda sock: None)
        supervised.selector.register(ours, selectors.EVENT_READ, handlers)
        theirs.send(b"x")
        assert supervised._service_subprocess(max_wait_time=LONG_S) is None
        assert seen == [b"x"]
