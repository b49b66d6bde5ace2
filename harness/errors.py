"""The one error of the harness."""

from __future__ import annotations


class HarnessError(RuntimeError):
    """Airflow did not do in time what it was asked for; the message ends with its components' last lines."""
