"""How the simulator's time grows with the number of jobs: benchmark B4 ``scale`` in growing parts.

Run by ``make bench`` on small parts; the whole trace is an option::

    python -m bench.bench_scale --whole
    python -m bench.bench_scale --parts 10 30 --policy eaco

Each run is the first so many per cent of the lines of the Philly trace on 312 nodes of eight GPUs, in a
process of its own, so that its peak memory is its own. Times are CPU times of the simulation alone, since
other programs share the machine; reading the trace takes about a second more. The trace has to be in the
folder that ``EACO_DATA`` names.
"""

from __future__ import annotations

import argparse
import json
import math
import resource
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from airflow_provider_eaco.simulator.readers import read_trace
from airflow_provider_eaco.simulator.runner import Simulation
from airflow_provider_eaco.simulator.scenario import BENCHMARKS, Choices
from airflow_provider_eaco.simulator.workload import data_folder
from bench.figures import Aim, Figure, Kind, Outcome

POLICIES = ("exclusive", "eaco")
SMALL_PARTS_PCT = (1.0, 3.0, 10.0)
WHOLE_PARTS_PCT = (10.0, 30.0, 100.0)
# What the whole trace may take, in seconds of CPU time, and in MiB.
WHOLE_CPU_S = {"exclusive": 30.0, "eaco": 120.0}
MOST_MEMORY_MIB = 1024.0


@dataclass(frozen=True, slots=True)
class Sample:
    """One run: ``jobs`` that were simulated, what they took, and the process's highest memory."""

    policy: str
    part_pct: float
    jobs: int
    cycles: int
    cpu_s: float
    wall_s: float
    memory_mib: float


def simulate(policy: str, part_pct: float, lines: int) -> Sample:
    """Simulate the first ``lines`` of the trace in this process."""
    scenario = BENCHMARKS["scale"](Choices(policy, jobs=lines))
    begin_s, begin_cpu_s = time.monotonic(), time.process_time()
    recording = Simulation(scenario).run()
    cpu_s, wall_s = time.process_time() - begin_cpu_s, time.monotonic() - begin_s
    peak_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return Sample(policy, part_pct, len(scenario.jobs), len(recording.decision_s), cpu_s, wall_s, peak_mib)


def measure(policy: str, part_pct: float) -> Sample:
    """Simulate a part of the trace in a process of its own.

    :raises RuntimeError: with its last words, if that fails.
    """
    command = [sys.executable, "-m", "bench.bench_scale", "--policy", policy, "--one", str(part_pct)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(done.stderr.strip().rpartition("\n")[2])
    return Sample(**json.loads(done.stdout))


def growth(samples: Sequence[Sample]) -> tuple[float, float]:
    """Return the exponent of CPU time in the number of jobs, and the one that N log N has in this range.

    Both are slopes of a least-squares line through the logarithms: 1 is linear, 2 quadratic.
    """
    sizes = [math.log(sample.jobs) for sample in samples]
    return (
        _slope(sizes, [math.log(sample.cpu_s) for sample in samples]),
        _slope(sizes, [math.log(sample.jobs * math.log(sample.jobs)) for sample in samples]),
    )


def _slope(along: Sequence[float], up: Sequence[float]) -> float:
    middle, height = math.fsum(along) / len(along), math.fsum(up) / len(up)
    squares = math.fsum((x - middle) ** 2 for x in along)
    return math.fsum((x - middle) * (y - height) for x, y in zip(along, up, strict=True)) / squares


def run(*, quick: bool) -> Outcome:
    """Measure small parts of the trace under both policies."""
    figures: list[Figure] = []
    details = {}
    for policy in POLICIES:
        samples = [measure(policy, part) for part in SMALL_PARTS_PCT[: 2 if quick else None]]
        details[policy] = [asdict(sample) for sample in samples]
        figures += _figures(policy, samples)
    return Outcome(figures, details=details)


def _figures(policy: str, samples: Sequence[Sample]) -> list[Figure]:
    last = samples[-1]
    what = f"scale, {policy}, {last.jobs:,} jobs"
    exponent, allowed = growth(samples)
    return [
        Figure(what, "simulated in", last.cpu_s, "s", Kind.CPU_TIME, 1),
        Figure(what, "peak memory", last.memory_mib, "MiB", Kind.MEMORY, 1, Aim(MOST_MEMORY_MIB)),
        Figure(what, "exponent of growth", exponent, "", Kind.GROWTH, len(samples), Aim(allowed)),
    ]


def print_growth(policy: str, parts_pct: Sequence[float]) -> None:
    """Measure and print one line a part, then how the time grows."""
    samples = []
    for part_pct in parts_pct:
        sample = measure(policy, part_pct)
        samples.append(sample)
        whole = part_pct == WHOLE_PARTS_PCT[-1] and policy in WHOLE_CPU_S
        aim = f"  aim: at most {WHOLE_CPU_S[policy]:g} s and {MOST_MEMORY_MIB:g} MiB" if whole else ""
        print(  # noqa: T201  # the product of a benchmark
            f"  {policy:10} {part_pct:5g} %  {sample.jobs:6,} jobs  {sample.cycles:7,} cycles"
            f"  {sample.cpu_s:7.1f} s CPU ({1000 * sample.cpu_s / sample.jobs:.2f} ms a job)"
            f"  {sample.wall_s:7.1f} s wall  {sample.memory_mib:5.0f} MiB{aim}",
            flush=True,
        )
    if len(samples) > 1:
        exponent, allowed = growth(samples)
        verdict = "no worse than" if exponent <= allowed else "worse than"
        print(  # noqa: T201  # the product of a benchmark
            f"  {policy:10} grows with N^{exponent:.2f}: {verdict} N log N (N^{allowed:.2f} in this range)",
            flush=True,
        )


def parse(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Return the arguments: ``policy`` (a list), ``parts`` in per cent, and ``one`` part for this process."""
    parser = argparse.ArgumentParser(prog="python -m bench.bench_scale", description=__doc__)
    parser.add_argument("--policy", nargs="+", default=list(POLICIES), metavar="NAME")
    parser.add_argument("--parts", nargs="+", type=float, default=list(SMALL_PARTS_PCT), metavar="PER_CENT")
    parser.add_argument(
        "--whole", dest="parts", action="store_const", const=list(WHOLE_PARTS_PCT), help="10, 30 and 100 %%"
    )
    parser.add_argument("--one", type=float, metavar="PER_CENT", help="this part in this process, as JSON")
    arguments = parser.parse_args(argv)
    if not all(0 < part <= 100 for part in arguments.parts):
        parser.error("--parts: per cent of the trace, above 0 and at most 100")
    return arguments


def main(argv: Sequence[str] | None = None) -> None:
    """Print how long each part takes, and how that grows."""
    arguments = parse(argv)
    if arguments.one is not None:
        lines = len(read_trace(data_folder() / "philly_trace" / "jobs.csv", "philly-csv").jobs)
        sample = simulate(arguments.policy[0], arguments.one, round(lines * arguments.one / 100))
        print(json.dumps(asdict(sample)))  # noqa: T201  # read by whoever started this process
        return
    print("benchmark scale: the Philly trace on 2,496 GPUs")  # noqa: T201  # the product of a benchmark
    for policy in arguments.policy:
        print_growth(policy, arguments.parts)


if __name__ == "__main__":
    main()
