"""Many machines for a long time: ``make soak`` trains on them while their parts are hurt in turn."""

from __future__ import annotations

import os
import random
import sys
import time
from collections.abc import Callable

import pytest

from harness.airflow import SCHEDULER
from tests.system.machines.invariants import (
    check_all_trained,
    check_ledger,
    check_one_at_a_time,
    wait_quiet,
)
from tests.system.machines.site import NODES, SECOND, Site
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
    **{f"kill {name}": (lambda site, name=name: site.restart(name)) for name in (SCHEDULER, SECOND, *NODES)},
    **{f"stop {node}": (lambda site, node=node: _stop(site, node)) for node in NODES},
    "restart the broker": lambda site: site.redis.restart(),
    "restart PostgreSQL": lambda site: site.postgres.restart(),
}


def test_c22_the_ledger_holds_for_a_long_time(site: Site) -> None:
    """Round after round nothing is lost, nothing runs twice, and no GPU is over-admitted (C22)."""
    seed = random.randrange(10_000)
    chance = random.Random(seed)
    until = time.monotonic() + SOAK_S
    rounds = 0
    while time.monotonic() < until:
        rounds += 1
        run = site.rig.run("machines", epochs=3)
        faults = _hurt(site, run, chance)
        check_all_trained(run, TRAININGS)
        check_one_at_a_time(run)
        wait_quiet(site)
        check_ledger(site)
        beside = ", ".join(faults) or "nothing"
        sys.stdout.write(f"seed {seed}, round {rounds}: {TRAININGS} trainings beside {beside}\n")


def _hurt(site: Site, run: Run, chance: random.Random) -> list[str]:
    """Hurt one part every now and then until the run has ended; return what was done."""
    done: list[str] = []
    next_s = time.monotonic() + chance.uniform(0.0, PAUSE_S)
    states = "SELECT state FROM dag_run WHERE dag_id = :dag AND run_id = :run"

    def is_over() -> bool:
        nonlocal next_s
        if time.monotonic() >= next_s:
            done.append(chance.choice(sorted(FAULTS)))
            FAULTS[done[-1]](site)
            next_s = time.monotonic() + PAUSE_S
        [row] = site.airflow.query(states, dag=run.dag_id, run=run.run_id)
        return row["state"] in {"success", "failed"}

    site.wait(is_over, f"the end of a round beside {done}", 1200.0)
    return done
