"""Whether this machine has GPUs that NVML can list; asked once, when nothing else says what they are."""

from __future__ import annotations

import ctypes
import logging
import subprocess

from airflow_provider_eaco.telemetry.nvml_feed import command

LIBRARY = "libnvidia-ml.so.1"
PATIENCE_S = 5.0

log = logging.getLogger(__name__)


def has_library() -> bool:
    """Tell whether NVML's library can be loaded. It is not started here, so that nothing can hang."""
    try:
        ctypes.CDLL(LIBRARY)
    except OSError:
        return False
    return True


def lists_a_gpu(patience_s: float = PATIENCE_S) -> bool:
    """Tell whether NVML lists a GPU, asked in a process of its own.

    A library that does not answer within ``patience_s`` is taken for one with GPUs.
    """
    try:
        answer = subprocess.run(
            command("count"), stdin=subprocess.DEVNULL, capture_output=True, timeout=patience_s, check=False
        )
    except subprocess.TimeoutExpired:
        log.warning("NVML did not say within %s s which GPUs there are", patience_s)
        return True
    except OSError as error:
        log.warning("NVML cannot be asked which GPUs there are: error=%s", error)
        return False
    return answer.stdout.strip().isdigit() and int(answer.stdout) > 0
