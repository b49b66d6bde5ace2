"""Whether the documented order holds in a real Airflow, whose scheduler decides what the executor sees.

``python -m bench.bench_order chains pools backfill`` prints the figures of docs/reproduce/order-live.md;
each measurement starts an Airflow of its own, on PostgreSQL. Sizes are options.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any

from bench.figures import quantile
from bench.order_rig import DEADLINE_S, Note, OrderRig, order_rig

CHAIN = ("one", "two", "three")
_UNFINISHED = "SELECT id FROM dag_run WHERE run_type = 'backfill' AND state IN ('queued', 'running')"
_QUEUED = "Setting the following tasks to queued state"
_READY = "tasks up for execution"


def parse(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Return the arguments; sizes are those of the cases where nothing else is said."""
    parser = argparse.ArgumentParser(prog="python -m bench.bench_order", description=__doc__)
    parser.add_argument("what", nargs="+", choices=list(MEASUREMENTS))
    parser.add_argument("--pairs", type=int, default=50, help="chains: pairs of runs")
    parser.add_argument("--chains", type=int, default=5, help="chains: pairs that run at one time")
    parser.add_argument(
        "--chain-s", type=float, default=7.0, help="chains: seconds of a task, and up to 1 more"
    )
    parser.add_argument("--gpus", type=int, default=20, help="pools: GPUs of each pool")
    parser.add_argument("--busy", type=int, default=1000, help="pools: tasks of weight 2")
    parser.add_argument("--idle", type=int, default=100, help="pools: tasks of weight 1")
    parser.add_argument("--flood-s", type=float, default=60.0, help="pools: seconds of a task")
    parser.add_argument("--runs", type=int, default=50, help="backfill: runs of the backfill")
    parser.add_argument("--calendar-s", type=float, default=10.0, help="backfill: seconds of a task")
    parser.add_argument(
        "--option",
        action="append",
        default=[],
        metavar="SECTION.NAME=VALUE",
        help="an option of Airflow's or of ours, may be repeated",
    )
    return parser.parse_args(argv)


def _say(line: str) -> None:
    print(line, flush=True)  # noqa: T201  # the product of a benchmark


def measure_chains(rig: OrderRig, arguments: argparse.Namespace) -> None:
    """C02: two chains, one GPU, weights that grow along a chain: the older run has to end first."""
    pairs = kept = passed = 0
    while pairs < arguments.pairs:
        numbers = range(min(arguments.chains, arguments.pairs - pairs))
        runs = {f"{name}{number}": "" for name in "ab" for number in numbers}
        for dag in runs:
            runs[dag] = rig.airflow.trigger(dag)
        for dag, run in runs.items():
            rig.airflow.wait_run(dag, run, deadline_s=DEADLINE_S)
        for number in numbers:
            names = (f"a{number}", f"b{number}")
            order = [f"{n.dag[0]}-{n.task}" for n in rig.starts(*names) if n.run == runs[n.dag]]
            wanted = [f"{name}-{task}" for name in "ab" for task in CHAIN]
            kept += order == wanted
            passed += sum(order.index("b-one") < order.index(f"a-{task}") for task in CHAIN[1:])
            if order != wanted:
                _say("  missed: " + " ".join(order))
        pairs += len(numbers)
    _say(f"- order held in {kept} of {pairs} pairs of runs")
    _say(f"- {passed} of {2 * pairs} follow-ups were passed by the other DAG's first task")


def measure_pools(rig: OrderRig, arguments: argparse.Namespace) -> None:
    """C03: a flood of more weight in one pool, tasks of less weight in another pool, whose GPUs are free.

    All become ready at one time.
    """
    before = len(rig.scheduler_log())
    triggered_s = time.time()
    rig.airflow.trigger("weights")
    rig.airflow.wait_for(lambda: _ended(rig, "idle") >= arguments.idle, "the idle pool's tasks", DEADLINE_S)
    loops = _loops_until(rig.scheduler_log()[before:], "weights.idle")
    _say(f"- the first of the idle pool was handed over in loop {loops}")
    starts = rig.starts("weights", task="idle")
    queued_s = rig.queued_s("weights")
    own_s = {
        task: [at - triggered_s for key, at in queued_s.items() if key[1] == task]
        for task in ("busy", "idle")
    }
    for task, at_s in own_s.items():
        _say(f"- {task}: {len(at_s)} tasks handed over {min(at_s):.1f} s to {max(at_s):.1f} s later")
    _say(f"- idle: first start {starts[0].begun_s - triggered_s:.1f} s after the trigger")
    filled_s = starts[arguments.gpus - 1].begun_s - triggered_s
    _say(f"- idle: all {arguments.gpus} GPUs in use {filled_s:.1f} s after the trigger")
    gaps = _gaps(starts, arguments.gpus)
    if gaps:
        _say(
            f"- idle: a GPU was free between two tasks for {quantile(gaps, 0.5):.1f} s in the median, "
            f"p90 {quantile(gaps, 0.9):.1f} s, at most {max(gaps):.1f} s ({len(gaps)} times)"
        )


def _ended(rig: OrderRig, task: str) -> int:
    return sum(note.ended_s is not None for note in rig.starts("weights", task=task))


def _loops_until(said: str, task: str) -> int:
    """Return which of the loops that handed tasks over was the first with one of this DAG's task."""
    loops = said.split(_QUEUED)[1:]
    for number, text in enumerate(loops, start=1):
        if f" {task} " in text.split(_READY)[0]:
            return number
    raise RuntimeError(f"no task of {task} was handed over")


def _gaps(starts: Sequence[Note], gpus: int) -> list[float]:
    """Return how long a GPU was free before each start after the first of each GPU."""
    ends = sorted(note.ended_s for note in starts if note.ended_s is not None)
    return [start.begun_s - ends[number] for number, start in enumerate(starts[gpus:])]


def measure_backfill(rig: OrderRig, arguments: argparse.Namespace) -> None:
    """C06: a backfill of the DAG that also runs every minute, on one GPU."""
    begin_s = time.time()
    now = datetime.now(tz=UTC).replace(second=0, microsecond=0)
    # Not the date that is due when the DAG begins: Airflow's scheduler ends where both make a run for it.
    last = now - timedelta(minutes=5)
    _backfill(rig, last - timedelta(minutes=arguments.runs - 1), last)
    rig.airflow.wait_for(lambda: not rig.airflow.query(_UNFINISHED), "the backfill", DEADLINE_S)
    notes = rig.starts("calendar")
    queued = rig.queued_s("calendar")
    filling = [note for note in notes if note.run.startswith("backfill")]
    planned = [note for note in notes if note.run.startswith("scheduled")]
    waits = [note.begun_s - queued[note.run, note.task, 0] for note in planned]
    passed = [
        sum(queued[note.run, note.task, 0] < other.begun_s < note.begun_s for other in filling)
        for note in planned
    ]
    end_s = max(note.begun_s for note in filling)
    _say(f"- {len(filling)} runs of the backfill in {end_s - begin_s:.0f} s, {len(planned)} scheduled runs")
    _say(f"- scheduled runs waited {quantile(waits, 0.5):.1f} s in the median, {max(waits):.1f} s at most")
    _say(
        f"- {sum(map(bool, passed))} of {len(planned)} were passed by tasks of the backfill, "
        f"by {max(passed)} at most"
    )
    ends = sorted(note.ended_s for note in filling if note.ended_s is not None)
    longest_s = max(after - before for before, after in pairwise(ends))
    _say(f"- between two ends of runs of the backfill passed {longest_s:.1f} s at most")


def _backfill(rig: OrderRig, first: datetime, last: datetime) -> Any:
    rig.airflow.wait_for(lambda: rig.airflow.api.answers("/api/v2/dags/calendar"), "the DAG")
    body = {
        "dag_id": "calendar",
        "from_date": first.isoformat(),
        "to_date": last.isoformat(),
        "run_backwards": False,
        "max_active_runs": 10,
    }
    rig.airflow.api.call("PATCH", "/dags/calendar", {"is_paused": False})
    return rig.airflow.api.call("POST", "/backfills", body)


MEASUREMENTS: dict[str, Callable[[OrderRig, argparse.Namespace], None]] = {
    "chains": measure_chains,
    "pools": measure_pools,
    "backfill": measure_backfill,
}


def main(argv: Sequence[str] | None = None) -> None:
    """Measure what was asked for, one after the other."""
    arguments = parse(argv)
    sizes = {
        name: getattr(arguments, name)
        for name in ("chains", "chain_s", "busy", "idle", "flood_s", "calendar_s")
    }
    gpus = {f"turns{number}": 1 for number in range(arguments.chains)}
    gpus |= {"busy": arguments.gpus, "idle": arguments.gpus, "calendar": 1}
    options = dict(each.split("=", 1) for each in arguments.option)
    for name in arguments.what:
        _say(f"{name} ({', '.join(arguments.option) or 'no option changed'}):")
        with order_rig(sizes, gpus, options) as rig:
            MEASUREMENTS[name](rig, arguments)


if __name__ == "__main__":
    main()
