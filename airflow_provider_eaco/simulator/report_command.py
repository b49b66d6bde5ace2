"""``eaco-sim report``: the page of runs whose files are there."""

from __future__ import annotations

import argparse
from pathlib import Path

from airflow_provider_eaco.simulator.report import write_report


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of the command."""
    parser.add_argument("runs", nargs="+", type=Path, metavar="DIR", help="folder with the files of a run")
    parser.add_argument(
        "--out", type=Path, metavar="DIR", help="folder for the page (default: that of the only run)"
    )
    parser.add_argument("--no-images", dest="images", action="store_false", help="leave the PNG plots out")


def execute(options: argparse.Namespace) -> int:
    """Write the page and print where it is; return the exit code."""
    folder = options.out or (options.runs[0] if len(options.runs) == 1 else Path())
    print(write_report(folder, options.runs, images=options.images))  # noqa: T201 - the command's answer
    return 0
