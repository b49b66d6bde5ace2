"""A real tree of processes whose first one names itself, as a task of Airflow does."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

# Names itself, forks a child that keeps the name, starts a program with a name of its own; tells all pids.
PROGRAM = """
import sys
from setproctitle import setproctitle

setproctitle(sys.argv[1])
print("named", flush=True)
sys.stdin.read()
"""
TREE = """
import os, subprocess, sys
from setproctitle import setproctitle

setproctitle(sys.argv[1])
child = os.fork()
if child == 0:
    sys.stdin.read()
    os._exit(0)
program = subprocess.Popen([sys.executable, "-c", *sys.argv[2:]], stdin=sys.stdin, stdout=subprocess.PIPE)
program.stdout.readline()
print(os.getpid(), child, program.pid, flush=True)
program.wait()
os.waitpid(child, 0)
"""


@contextmanager
def tree(title: str, below: str = "python rank.py") -> Iterator[tuple[int, int, int]]:
    """Give the pids of a process with this title, of its fork, and of a program that it has started, which
    is named ``below``.
    """
    command = [sys.executable, "-c", TREE, title, PROGRAM, below]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        own, child, program = map(int, process.stdout.readline().split())
        try:
            yield own, child, program
        finally:
            process.stdin.close()
