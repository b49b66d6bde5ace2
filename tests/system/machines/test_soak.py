"""Many machines for a long time: ``make soak`` trains on them while their parts are hurt in turn."""

from __future__ import annotations

import os
import random
import sys
import time
from collections.abc import Callable, Iterator

import pytest

from tests.system.machines.invariants import (
    check_all_trained,
    check_beside,
    check_ledger,
    check_numbers,
    check_one_at_a_time,
    check_owners,
    wait_quiet,
)
from tests.system.machines.site import NODES, Site
from tests.system.rig import Run

SOAK_S = float(os.environ.get("EACO_SOAK_S", "0"))
TRAININGS = 24
PAUSE_S = 20.0

pytestmark = [
    pytest.mark.airflow,
    pytest.mark.postgres,
    pytest.mark.timeout(0),
    pytest.mark.skipif(not SOAK_S, reason="runs with `make soak`"),
]


def _stop(site: Site, node: str) -> None:
    with site.stopped(node):
        site.wait(lambda: site.node_is_silent(node), f"the silence of {node}")


FAULTS: dict[str, Callable[[Site], None]] = {
    **{f"kill {node}": (lambda site, node=node: site.restart(node)) for node in NODES},
    **{f"stop {node}": (lambda site, node=node: _stop(site, node)) for node in NODES},
    "restart the broker": lambda site: site.redis.restart(),
    "restart PostgreSQL": lambda site: site.restart_postgres(),
}


def test_c22_the_ledger_holds_for_a_long_time(site: Site) -> None:
    """Round after round nothing is lost, nothing runs twice, and no GPU is over-admitted, beside each fault
    at least once and a scheduler that dies every 20 s; tasks without a GPU go on (C22, I1 to I5).
    """
    seed = random.randrange(10_000)
    _say(f"seed {seed}")
    faults, done = _in_turn(random.Random(seed)), set[str]()
    until = time.monotonic() + SOAK_S
    while time.monotonic() < until or done != FAULTS.keys():
        begin, kills = time.monotonic(), len(site.kills)
        beside, run = site.rig.run("no_gpu"), site.rig.run("machines", epochs=3)
        with site.schedulers_dying(every_s=PAUSE_S):
            hurt = _hurt(site, run, faults)
        done |= set(hurt)
        check_all_trained(run, TRAININGS)
        check_one_at_a_time(run)
        wait_quiet(site)
        check_ledger(site)
        check_numbers(site)
        check_beside(site, beside)
        took_s, died = time.monotonic() - begin, len(site.kills) - kills
        parts = ", ".join([f"{died} dead schedulers", *hurt])
        _say(f"{TRAININGS} trainings in {took_s:.0f} s beside {parts}")
    assert site.kills


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def _in_turn(chance: random.Random) -> Iterator[str]:
    """Yield all faults in an order of chance, again and again."""
    while True:
        yield from chance.sample(sorted(FAULTS), len(FAULTS))


def _hurt(site: Site, run: Run, faults: Iterator[str]) -> list[str]:
    """Hurt one part every now and then until the run has ended; return what was done."""
    done: list[str] = []
    next_s = time.monotonic() + PAUSE_S / 2
    states = "SELECT state FROM dag_run WHERE dag_id = :dag AND run_id = :run"

    def is_over() -> bool:
        nonlocal next_s
        if time.monotonic() >= next_s:
            done.append(next(faults))
            FAULTS[done[-1]](site)
            check_owners(site)
            next_s = time.monotonic() + PAUSE_S
        [row] = site.airflow.query(states, dag=run.dag_id, run=run.run_id)
        return row["state"] in {"success", "failed"}

    site.wait(is_over, lambda: f"the end of a round beside {done}", 1200.0)
    return done
