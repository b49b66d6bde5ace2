"""A long queue costs a heartbeat and a page no more questions than a short one (case C68)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import sqlalchemy as sa
from sqlalchemy.engine import Engine

from airflow_provider_eaco.core.model.decision import Verdict
from airflow_provider_eaco.provider.cli.facts import read_facts
from airflow_provider_eaco.store import schema
from tests.builders import make_job
from tests.unit.provider.cli.rig import Cluster

MANY = 1000
KINDS = 4


@contextmanager
def counted(engine: Engine) -> Iterator[list[str]]:
    """Collect the statements that are sent to the database meanwhile."""
    sent: list[str] = []

    def note(_connection: object, _cursor: object, statement: str, *_rest: object) -> None:
        sent.append(statement)

    sa.event.listen(engine, "before_cursor_execute", note)
    yield sent
    sa.event.remove(engine, "before_cursor_execute", note)


def fill(cluster: Cluster, engine: Engine, waiting: int) -> None:
    """Let so many tasks of a few kinds wait for the one GPU that there is, which is held."""
    cluster.add_node()
    now_s = cluster.store.clock.now_s()
    cluster.add(make_job("holder", "holder", 1, queued_s=now_s))
    cluster.plan()
    cluster.start("holder")
    for kind in range(KINDS):
        cluster.add(make_job(f"kind-{kind}", f"family-{kind}", 1, queued_s=now_s))
    with engine.begin() as connection:
        rows = connection.execute(
            sa.select(schema.job).where(schema.job.c.job_id.like("kind-%")).order_by(schema.job.c.job_id)
        ).mappings()
        kinds = [dict(row) for row in rows]
        more = [
            {**kinds[number % KINDS], "job_id": f"job-{number:04d}", "map_index": number}
            for number in range(waiting - KINDS)
        ]
        connection.execute(sa.insert(schema.job), more)


def test_c68_a_cycle_and_a_page_ask_as_much_for_1000_as_for_100(cluster: Cluster, engine: Engine) -> None:
    """Planning and the page's facts send as many statements for 1,000 waiting tasks as for 100, and decide
    each kind once (C68).
    """
    fill(cluster, engine, MANY // 10)
    cluster.plan()
    few = {work: count(engine, work, cluster) for work in ("plan", "page")}
    with engine.begin() as connection:
        row = dict(
            connection.execute(sa.select(schema.job).where(schema.job.c.job_id == "kind-0")).mappings().one()
        )
        more = [{**row, "job_id": f"late-{n:04d}", "map_index": 5000 + n} for n in range(MANY * 9 // 10)]
        connection.execute(sa.insert(schema.job), more)
    report = cluster.plan()
    held = [item for item in report.decided if item.decision.verdict is Verdict.HOLD]
    assert sum(len(item.job_ids) for item in held) == MANY
    assert len(held) == KINDS
    assert {work: count(engine, work, cluster) for work in ("plan", "page")} == few
    assert len(read_facts().queue) == MANY


def count(engine: Engine, work: str, cluster: Cluster) -> int:
    """Return how many statements a planning cycle sends that finds nothing new, or a look at the page."""
    does: dict[str, Callable[[], object]] = {"plan": cluster.plan, "page": read_facts}
    with counted(engine) as sent:
        does[work]()
    assert sent
    return len(sent)
