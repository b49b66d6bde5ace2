"""``eaco-sim``: replay clusters through the live engine, without Airflow."""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Sequence

from airflow_provider_eaco import __version__
from airflow_provider_eaco.core.model.errors import EacoError
from airflow_provider_eaco.simulator.commands import COMMANDS

# As argparse does for a wrong option: the input is at fault, not the run.
BAD_INPUT = 2


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; return its exit code, 2 for an input that cannot be used."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    options = _parser(words).parse_args(words)
    command = importlib.import_module(COMMANDS[options.command].module)
    try:
        return int(command.execute(options))
    except EacoError as error:
        print(f"eaco-sim {options.command}: error: {error}", file=sys.stderr)  # noqa: T201 - a command's answer
        return BAD_INPUT


def _parser(words: Sequence[str]) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="eaco-sim", description=__doc__)
    parser.add_argument("--version", action="version", version=f"%(prog)s {__version__}")
    parsers = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, command in COMMANDS.items():
        sub = parsers.add_parser(name, help=command.summary, description=command.summary)
        # Only the wanted command is imported: the others' needs must not slow it down.
        if name in words:
            importlib.import_module(command.module).add_arguments(sub)
    return parser


if __name__ == "__main__":
    sys.exit(main())
