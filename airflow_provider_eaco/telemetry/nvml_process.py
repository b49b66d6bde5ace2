"""The sampling process: writes one line for each look at the GPUs.

It is a process of its own, since a call into a driver may hang or crash, and since only a new process gets
the library of a driver that was replaced. It leaves when NVML is gone, after a line that says why, and when
its parent is gone. :mod:`.nvml_feed` starts it.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TextIO

from airflow_provider_eaco.telemetry.nvml_limits import answer_request
from airflow_provider_eaco.telemetry.nvml_reader import NvmlGoneError, NvmlReader
from airflow_provider_eaco.telemetry.nvml_sample import MachineSample

PARENT_INTERVAL_S = 5.0
# Longer than whoever asks waits. Without it a process that hangs in the driver would outlive a scheduler that
# died, and keep the book of limits from the next one.
LIMIT_S = 60


def write_samples(interval_s: float, out: TextIO) -> int:
    """Write a sample every ``interval_s`` until NVML or the reader of ``out`` is gone.

    Return 0 if nobody reads any more, 1 if NVML is gone.
    """
    reader = None
    try:
        reader = NvmlReader()
        reader.open()
        next_s = time.monotonic()
        while True:
            out.write(reader.sample().as_line())
            out.flush()
            # Looks that were missed are not made up for.
            next_s = max(next_s + interval_s, time.monotonic())
            time.sleep(max(0.0, next_s - time.monotonic()))
    except BrokenPipeError:
        # Python would flush once more at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), out.fileno())
        return 0
    except Exception as error:  # noqa: BLE001 - nobody but the reader of the line learns of it
        problem = str(error) if isinstance(error, NvmlGoneError) else f"{type(error).__name__}: {error}"
        out.write(MachineSample(time.time(), time.monotonic(), problem=problem).as_line())
        return 1
    finally:
        if reader is not None:
            reader.close()


def _leave_with_parent(parent: int) -> None:
    """End the process when its parent is gone, also while a call hangs.

    That shows at the end of standard input; a process that the parent forked may have inherited the other
    end, and then it shows by another parent.
    """
    while os.getppid() == parent:
        if select.select([sys.stdin], [], [], PARENT_INTERVAL_S)[0] and not os.read(sys.stdin.fileno(), 1):
            break
    os._exit(0)


def count_gpus() -> int:
    """Return how many GPUs NVML lists, 0 if it cannot be asked."""
    try:
        reader = NvmlReader()
        reader.open()
        return len(reader.sample().devices)
    except (NvmlGoneError, ImportError):
        return 0


def main(arguments: Sequence[str]) -> int:
    """Do as asked: ``count`` prints the number of GPUs; ``sample SECONDS`` writes samples to standard output
    until standard input ends; ``limit BOOK`` carries the request for power limits in standard input out.
    """
    if list(arguments) == ["count"]:
        sys.stdout.write(f"{count_gpus()}\n")
        return 0
    verb, argument = arguments
    if verb == "limit":
        signal.alarm(LIMIT_S)
        return answer_request(Path(argument), sys.stdin, sys.stdout)
    threading.Thread(target=_leave_with_parent, args=(os.getppid(),), daemon=True).start()
    return write_samples(float(argument), sys.stdout)
