"""``python -m bench``: run the benchmarks, print their figures, and leave ``build/bench/results.json``.

The exit code is 0 when everything was measured, whether or not the aims were met: those depend on the machine
and on what else it does.
"""

from __future__ import annotations

import argparse
import sys
import time
import traceback
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from bench.figures import load_1m, machine
from bench.report import Result, print_results, write_results
from bench.suite import BENCHMARKS, Benchmark

RESULTS = Path("build") / "bench" / "results.json"


def parse(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Return the arguments: ``quick``, ``only`` (names, in the order of the suite) and ``out``."""
    about = "\n".join(f"  {each.name:11} {each.about}" for each in BENCHMARKS.values())
    parser = argparse.ArgumentParser(
        prog="python -m bench",
        description=f"Measures what the documentation claims about speed:\n{about}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--quick", action="store_true", help="few samples: shows that it works, proves little"
    )
    parser.add_argument(
        "--only",
        action="append",
        choices=list(BENCHMARKS),
        metavar="NAME",
        help=f"run this one alone, may be repeated: {', '.join(BENCHMARKS)}",
    )
    parser.add_argument("--out", type=Path, default=RESULTS, help=f"the JSON file (default {RESULTS})")
    return parser.parse_args(argv)


def measure(benchmark: Benchmark, *, quick: bool) -> Result:
    """Run one benchmark; an error of it is its result, and keeps no other from running."""
    command = f"python -m bench --only {benchmark.name}{' --quick' if quick else ''}"
    load, begin_s = load_1m(), time.monotonic()
    outcome, problem = None, None
    try:
        outcome = benchmark.run(quick=quick)
    except Exception as error:  # noqa: BLE001 - whatever it is, the others still run
        traceback.print_exc()
        problem = f"{type(error).__name__}: {error}"
    return Result(benchmark.name, command, load, load_1m(), time.monotonic() - begin_s, outcome, problem)


def main(argv: Sequence[str] | None = None) -> int:
    """Run what was asked for; return 1 if one of them could not be measured."""
    arguments = parse(argv)
    # A file or a pipe has no width of its own; the table is one of a document then.
    console = Console(width=None if sys.stdout.isatty() else 120)
    found = machine()
    results: list[Result] = []
    for benchmark in BENCHMARKS.values():
        if arguments.only and benchmark.name not in arguments.only:
            continue
        console.print(f"measuring {benchmark.name}: {benchmark.about}", highlight=False)
        results.append(measure(benchmark, quick=arguments.quick))
        # After each, so that an end half-way leaves what there is.
        write_results(arguments.out, found, results, quick=arguments.quick)
    print_results(console, found, results)
    console.print(f"written to {arguments.out}", highlight=False)
    return 1 if any(result.error for result in results) else 0


if __name__ == "__main__":
    sys.exit(main())
