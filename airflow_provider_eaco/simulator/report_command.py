"""``eaco-sim report``: the page of runs whose files are there."""

from __future__ import annotations

import argparse
from pathlib import Path

from airflow_provider_eaco.simulator.out_option import check_out_folder, out_path, writing_to
from airflow_provider_eaco.simulator.report import write_report


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of the command."""
    parser.add_argument("runs", nargs="+", type=Path, metavar="DIR", help="folder with the files of a run")
    parser.add_argument(
        "--out", type=out_path, metavar="DIR", help="folder for the page (default: that of the only run)"
    )
    parser.add_argument("--no-images", dest="images", action="store_false", help="leave the PNG plots out")


def execute(options: argparse.Namespace) -> int:
    """Write the page and print where it is; return the exit code."""
    if options.out is not None:
        check_out_folder(options.out)
    folder = options.out or (options.runs[0] if len(options.runs) == 1 else Path())
    with writing_to(folder):
        page = write_report(folder, options.runs, images=options.images)
    print(page)  # noqa: T201 - the command's answer
    return 0
