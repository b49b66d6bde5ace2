"""The commands of ``eaco-sim``. Each is a module that is imported only when it is called.

A command's module has ``add_arguments(parser)`` and ``execute(options) -> int``, which returns the exit code.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Command:
    """One command: where it is, and the line that ``--help`` shows."""

    module: str
    summary: str


COMMANDS: Mapping[str, Command] = {
    "run": Command(
        "airflow_provider_eaco.simulator.run_command",
        "replay a benchmark or a trace under one policy and ordering",
    ),
}
