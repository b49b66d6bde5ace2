"""Entry points that the dispatcher's tests start: each shows one thing that real training jobs do."""

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

DEAF = """
import signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("up", flush=True)
time.sleep(300)
"""


def exit_with(payload: str) -> int | None:
    return json.loads(payload)


def leave_with(payload: str) -> None:
    sys.exit(json.loads(payload))


def fail(payload: str) -> None:
    raise RuntimeError(payload)


def end_by_signal(payload: str) -> None:
    os.kill(os.getpid(), int(payload))


def return_text(payload: str) -> str:
    return payload


def write(payload: str) -> None:
    sys.stdout.write(payload)


def wait(payload: str) -> None:
    """Say where we are, then wait for our end."""
    Path(payload).write_text(str(os.getpid()))
    time.sleep(300)


def describe(payload: str) -> None:
    """Write down what this process looks like from inside."""
    import fake_cuda

    seen = {
        "pid": os.getpid(),
        "parent": os.getppid(),
        "group": os.getpgrp(),
        "session": os.getsid(0),
        "threads": threading.active_count(),
        "environment": dict(os.environ),
        "cuda": fake_cuda.__name__,
        "random": random.random(),
        "sigint": signal.getsignal(signal.SIGINT) is signal.default_int_handler,
        "sigterm": signal.getsignal(signal.SIGTERM) is signal.SIG_DFL,
        "blocked": [int(number) for number in signal.pthread_sigmask(signal.SIG_BLOCK, [])],
        "open_files": _open_files(),
    }
    Path(payload).write_text(json.dumps(seen))


def _open_files() -> list[str]:
    """List what our file descriptors lead to, except the one that this listing itself needs."""
    targets = []
    for entry in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):
            targets.append(str(entry.readlink()))
    return sorted(targets)


def train_with_loaders(payload: str) -> None:
    """Behave like a training with data loaders at their worst, then wait.

    Forked and started children that ignore SIGTERM, one in a session of its own, one forked twice and
    detached, one without our markers in its environment; all hold the ends of a pipe open. Their pids go
    to the file named by ``payload``.
    """
    reader, writer = os.pipe()
    bare = {"PATH": os.environ["PATH"]}
    started = [
        subprocess.Popen(
            [sys.executable, "-c", DEAF], stdout=subprocess.PIPE, pass_fds=[reader, writer], **how
        )
        for how in ({}, {"start_new_session": True}, {"start_new_session": True, "env": bare})
    ]
    for child in started:
        child.stdout.read(1)
    pids = [child.pid for child in started]
    pids.append(_fork_deaf(detached=False))
    pids.append(_fork_deaf(detached=True))
    Path(payload).write_text(json.dumps([*pids, os.getpid()]))
    time.sleep(300)


def leave_loaders_behind(payload: str) -> None:
    """Start a deaf, detached child by a double fork, and return."""
    Path(payload).write_text(json.dumps([_fork_deaf(detached=True)]))


def _fork_deaf(*, detached: bool) -> int:
    """Fork a child that ignores SIGTERM; ``detached``: by two forks, in a session of its own."""
    reader, writer = os.pipe()
    first = os.fork()
    if first == 0:
        if detached:
            os.setsid()
            if os.fork() != 0:
                os._exit(0)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        os.write(writer, str(os.getpid()).encode())
        os.close(writer)
        time.sleep(300)
        os._exit(0)
    os.close(writer)
    pid = int(os.read(reader, 100))
    os.close(reader)
    if detached:
        os.waitpid(first, 0)
    return pid
