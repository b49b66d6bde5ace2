"""One recorded day, lived by the simulator and by the live engine over SQL, with equal decisions."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.engine import Engine
from sqlalchemy.pool import StaticPool

from airflow_provider_eaco.core.model.decision import Verdict
from airflow_provider_eaco.core.model.node_power import NodePower
from airflow_provider_eaco.core.model.snapshot import ClusterSnapshot
from airflow_provider_eaco.core.ports import PastLease
from airflow_provider_eaco.simulator.beliefs import Belief
from airflow_provider_eaco.simulator.clock import VirtualClock
from airflow_provider_eaco.simulator.scenario import Accounting, Choices, from_trace
from airflow_provider_eaco.simulator.trace import TraceJob, write_trace
from airflow_provider_eaco.store import schema
from airflow_provider_eaco.store.decisions import StoredDecision, decisions_of, events_of, kind_id
from tests.databases import database_on, postgres_server
from tests.simulation.live_day import LiveDay
from tests.simulation.tape import Tape, record

# Believed slowdowns are wrong by 30 %, so that trials go both ways.
UNDONE = Choices("eaco", "fifo", belief=Belief.KNOWN, belief_error=0.3, accounting=Accounting.SLEEP, nodes=4)
RULES = Choices(
    "eaco",
    "sjf",
    ("reserve", "fair_share", "ageing"),
    belief=Belief.SOLO,
    accounting=Accounting.SLEEP,
    nodes=2,
)
BACKFILL = Choices("eaco", "backfill", ("reserve",), belief=Belief.SOLO, nodes=2)
HORIZON = Choices("eaco", "horizon", belief=Belief.SOLO, nodes=2)


@pytest.fixture
def sqlite() -> Iterator[Engine]:
    engine = sa.create_engine("sqlite://", poolclass=StaticPool, connect_args={"check_same_thread": False})
    schema.metadata.create_all(engine)
    yield engine
    engine.dispose()


@pytest.fixture
def postgres() -> Iterator[Engine]:
    with postgres_server() as url:
        engine = sa.create_engine(url)
        schema.metadata.create_all(engine)
        yield engine
        engine.dispose()


def taped(folder: Path, count: int, choices: Choices) -> Tape:
    """Return a day on tape: ``count`` jobs of two teams on nodes of eight GPUs."""
    draw = random.Random(3)
    jobs, at_s = [], 0.0
    for number in range(count):
        jobs.append(
            TraceJob(
                f"job-{number:03d}",
                draw.choice(["J4", "J1", "J2", "J3", "stranger"]),
                draw.choice([8, 4, 2, 1, 8]),
                round(at_s, 3),
                round(draw.uniform(600, 9000), 3),
                draw.choice([1.02, 1.2, None]),
                draw.choice([0, 0, 1]),
                draw.choice(["red", "blue"]),
            )
        )
        at_s += draw.expovariate(1 / 250)
    write_trace(folder / "day.csv", jobs)
    return record(from_trace(folder / "day.csv", choices))


def assert_lived_alike(tape: Tape, engine: Engine) -> None:
    """Live the tape over SQL; what is seen, decided, done, written down, learnt and kept is equal."""
    clock = VirtualClock()
    live = LiveDay(database_on(engine, clock), clock, tape.beliefs)
    day = live.live(tape.events)
    for seen, live_seen, plan, live_plan in zip(
        tape.day.seen, day.seen, tape.day.plans, day.plans, strict=True
    ):
        assert _state(live_seen) == _state(seen), f"seen at {seen.now_s} s"
        assert live_plan == plan, f"planned at {plan.now_s} s"
    assert day.reports == tape.day.reports
    with live.database.reading() as connection:
        decided, happened = decisions_of(connection), events_of(connection)
    assert sorted(map(_stored, decided)) == sorted(
        (
            row.pool,
            row.at_s,
            *_answer(kind_id(row.decision.kind), row.decision.job_ids, row.decision.decision),
        )
        for row in tape.log.decisions
    )
    assert [(row.job_id, row.event, row.text, row.at_s) for row in happened] == [
        (row.job_id, row.event, row.text, row.at_s) for row in tape.log.events
    ]
    learnt = live.profiles.book()
    assert (learnt.solo, learnt.coallocation) == (tape.learnt.solo, tape.learnt.coallocation)
    past = live.ledger.past_leases(0.0, clock.now_s())
    assert _by_token(past) == _by_token(tape.past)
    view = live.ledger.view()
    assert (view.jobs, view.leases) == ((), ())


def _state(seen: ClusterSnapshot) -> tuple[Any, ...]:
    """What a decision can see, but for the book's revision and the order in which jobs are stored."""
    waiting = sorted(seen.waiting, key=lambda job: job.job_id)
    return seen.now_s, seen.pool, seen.nodes, waiting, seen.profiles.solo, seen.profiles.coallocation


def _stored(row: StoredDecision) -> tuple[Any, ...]:
    return row.pool, row.decided_s, *_answer(row.kind_id, (row.job_id,), row.decision)


def _answer(kind: str, job_ids: Sequence[str | None], decision: Any) -> tuple[Any, ...]:
    admitted = job_ids[0] if decision.verdict is Verdict.ADMIT else ""
    where = () if decision.placement is None else (decision.placement.node, *decision.placement.gpu_uuids)
    return kind, admitted or "", decision.verdict.value, decision.reason and decision.reason.code, where


def _by_token(past: Sequence[PastLease]) -> list[PastLease]:
    return sorted(past, key=lambda lease: lease.token)


def test_a_day_with_trials_undone_and_nodes_asleep(tmp_path: Path, sqlite: Engine) -> None:
    """Trials are confirmed and undone, jobs yield and come back, nodes wake up: the same, live."""
    tape = taped(tmp_path, 30, UNDONE)
    told = tape.recording
    assert min(told.confirmed, told.undone) >= 2
    assert any(interval.state is NodePower.ASLEEP for interval in told.nodes)
    assert_lived_alike(tape, sqlite)


@pytest.mark.parametrize(
    ("count", "choices"),
    [
        pytest.param(18, RULES, id="rules"),
        pytest.param(18, BACKFILL, id="backfill"),
        pytest.param(12, HORIZON, id="horizon"),
    ],
)
def test_a_day_under_rules_and_orders(tmp_path: Path, sqlite: Engine, count: int, choices: Choices) -> None:
    """What has ended decides who is next, starts are reserved and planned ahead: the same, live."""
    tape = taped(tmp_path, count, choices)
    assert tape.recording.trials > 0
    assert_lived_alike(tape, sqlite)


@pytest.mark.postgres
def test_a_day_on_postgres(tmp_path: Path, postgres: Engine) -> None:
    """The other database decides nothing differently."""
    assert_lived_alike(taped(tmp_path, 10, UNDONE), postgres)
