"""The keeper of one job's processes, and the child in which the job's own code runs.

The forkserver forks a keeper for each job. The keeper leads a session of its own and is a child subreaper:
whatever the job starts, detached or not, stays below it. It forks one child that runs the entry point,
waits for it, ends what the child left behind, and leaves with the child's exit code, as the first process
of a container would. It runs no user code, so that nothing a job does to itself takes its keeper along.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib
import os
import random
import select
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

from airflow_provider_eaco.dispatch.claim import claim
from airflow_provider_eaco.dispatch.environment import LOG_FILE_VARIABLE, device_conflicts
from airflow_provider_eaco.dispatch.process_group import descendants_of, read_processes, send_signal

_PR_SET_CHILD_SUBREAPER = 36  # linux/prctl.h
# The time that processes left behind by a finished job have between SIGTERM and SIGKILL.
LEFTOVER_GRACE_S = 5.0
_LEFTOVER_CHECK_S = 0.1
# A keeper outlives polite signals, which are meant for the job; only SIGKILL ends it early.
_POLITE_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)


@dataclass(frozen=True, slots=True)
class Order:
    """What the forkserver was asked to start; see :class:`airflow_provider_eaco.core.ports.LaunchOrder`."""

    job_id: str
    token: int
    entry_point: str
    payload: str
    environment: Mapping[str, str]


def keep(order: Order, report: Callable[[str | None], None]) -> NoReturn:
    """Become the keeper of ``order``; called in a fresh fork, never returns.

    :param report: called once, with the cause if nothing was started and with ``None`` otherwise. If it
        raises, nobody waits for the job any more and nothing is started.
    """
    try:
        listener = _prepare(order)
    except OSError as error:
        report(str(error))
        os._exit(1)
    with contextlib.suppress(OSError):
        report(None)
        _leave(_start_and_wait(order, listener))
    os._exit(1)


def _prepare(order: Order) -> socket.socket:
    """Become session leader and subreaper, claim the lease, open the log."""
    gc.disable()  # a keeper makes no garbage, and a collection would copy the shared pages
    signal.pthread_sigmask(signal.SIG_BLOCK, _POLITE_SIGNALS)
    os.setsid()
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"prctl(PR_SET_CHILD_SUBREAPER): {os.strerror(number)}")
    listener = claim(order.job_id, order.token)
    log_file = order.environment.get(LOG_FILE_VARIABLE)
    try:
        if log_file:
            _redirect_output(log_file)
            # Written at once: a full disk has to show before the job runs, not by its silence.
            os.write(1, f"job {order.job_id} starts under lease {order.token}\n".encode())
    except OSError:
        listener.close()  # before the report: whoever reads that must not find the claim still held
        raise
    return listener


def _redirect_output(log_file: str) -> None:
    handle = os.open(log_file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(handle, 1)
    os.dup2(handle, 2)
    os.close(handle)


def _start_and_wait(order: Order, listener: socket.socket) -> int:
    """Run the order in a child and return its wait status once no process of the job is left."""
    wake_reader, wake_writer = os.pipe()
    os.set_blocking(wake_writer, False)
    os.set_blocking(wake_reader, False)
    signal.signal(signal.SIGCHLD, lambda _number, _frame: None)
    signal.set_wakeup_fd(wake_writer, warn_on_full_buffer=False)
    try:
        child = os.fork()
    except OSError as error:
        _say(f"the job's process could not be started: {error}")
        raise
    if child == 0:
        signal.set_wakeup_fd(-1)
        for handle in (wake_reader, wake_writer, listener.fileno()):
            os.close(handle)
        _run(order)
    status: int | None = None
    leftovers = _Leftovers()
    while True:
        ended, is_alone = _reap(child)
        status = status if ended is None else ended
        if is_alone:
            return 0 if status is None else status
        if status is not None:
            leftovers.end()
        timeout_s = None if status is None else _LEFTOVER_CHECK_S
        select.select([listener.fileno(), wake_reader], [], [], timeout_s)
        _drop_visitors(listener)
        with contextlib.suppress(BlockingIOError):
            os.read(wake_reader, 4096)


def _reap(child: int) -> tuple[int | None, bool]:
    """Collect every ended process; return the child's wait status if it is among them, and whether no
    process is left at all.
    """
    status: int | None = None
    while True:
        try:
            pid, ended = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return status, True
        if pid == 0:
            return status, False
        if pid == child:
            status = ended


def _drop_visitors(listener: socket.socket) -> None:
    with contextlib.suppress(BlockingIOError):
        while True:
            listener.accept()[0].close()


class _Leftovers:
    """Ends what a job left behind: SIGTERM once, SIGKILL after the grace until nothing is left."""

    def __init__(self) -> None:
        self._kill_at_s: float | None = None

    def end(self) -> None:
        is_first = self._kill_at_s is None
        if self._kill_at_s is None:
            self._kill_at_s = time.monotonic() + LEFTOVER_GRACE_S
        elif time.monotonic() < self._kill_at_s:
            return
        processes = read_processes()
        left = [processes[pid] for pid in descendants_of([os.getpid()], processes) if processes[pid].alive]
        if left and is_first:
            named = ", ".join(str(process.pid) for process in left)
            _say(f"the job has ended and left processes behind, which are ended now: {named}")
        for process in left:
            send_signal(process, signal.SIGTERM if is_first else signal.SIGKILL)


def _leave(status: int) -> NoReturn:
    """Exit as the job did: its code, or 128 plus the number of the signal that ended it."""
    code = os.waitstatus_to_exitcode(status)
    if code < 0:
        _say(f"the job's process was ended by {signal.Signals(-code).name}")
        code = 128 - code
    os._exit(code)


def _say(text: str) -> None:
    with contextlib.suppress(OSError):
        os.write(2, f"eaco: {text}\n".encode())


def _run(order: Order) -> NoReturn:
    """Run the entry point in this process and exit with what came of it."""
    code = 1
    try:
        _become_ordinary()
        inherited = dict(os.environ)
        os.environ.update(order.environment)
        for conflict in device_conflicts(order.environment, inherited):
            _say(conflict)
        _reseed()
        code = _exit_code(_load(order.entry_point)(order.payload))
    except SystemExit as leave:
        if isinstance(leave.code, str):
            _say(leave.code)
        else:
            code = _exit_code(leave.code)
    except BaseException:  # noqa: BLE001 - nothing may climb into the keeper's frames below
        traceback.print_exc()
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):
            code = code or 1
    os._exit(code)


def _become_ordinary() -> None:
    """Undo what makes a keeper: default signals, a process group of its own, garbage collection."""
    for number in _POLITE_SIGNALS:
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    # A job that signals its own group must not hit its keeper.
    os.setpgid(0, 0)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _POLITE_SIGNALS)
    gc.enable()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(AttributeError):
            stream.reconfigure(line_buffering=True)  # type: ignore[union-attr]  # suppressed where it has none


def _reseed() -> None:
    """Give this process chances of its own; forks of one parent would all draw the same numbers."""
    random.seed()
    numpy_random = sys.modules.get("numpy.random")
    if numpy_random is not None:
        numpy_random.seed()


def _load(entry_point: str) -> Callable[[str], Any]:
    module, _, function = entry_point.partition(":")
    loaded: Callable[[str], Any] = getattr(importlib.import_module(module), function)
    return loaded


def _exit_code(returned: object) -> int:
    if returned is None:
        return 0
    if isinstance(returned, int):
        return returned if 0 <= returned <= 255 else 1  # the kernel keeps 8 bits, and 256 is no success
    raise TypeError(f"an entry point returns None or an exit code, not {returned!r}")
