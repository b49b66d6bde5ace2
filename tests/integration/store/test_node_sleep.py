"""Nodes that sleep or wake, as rows: one step for one of several who ask."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from airflow_provider_eaco.core.model.node_power import NodePower, NodePowerState
from airflow_provider_eaco.store.node_sleep import SqlNodeSleep
from tests.contract.parts import ManualClock
from tests.databases import database_on, sqlite_store

ASLEEP, WAKING = NodePower.ASLEEP, NodePower.WAKING


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(1000.0)


@pytest.fixture
def book(tmp_path: Path, clock: ManualClock) -> Iterator[SqlNodeSleep]:
    engine = sqlite_store(tmp_path / "store.db")
    yield SqlNodeSleep(database_on(engine, clock))
    engine.dispose()


def test_a_state_stands_since_its_step_and_goes_with_the_last(book: SqlNodeSleep, clock: ManualClock) -> None:
    """Each step has its own instant on the store's clock; other nodes stay as they are."""
    assert book.states() == {}
    assert book.move("n1", None, ASLEEP)
    clock.advance(10)
    assert book.move("n2", None, ASLEEP)
    assert book.move("n1", ASLEEP, WAKING)
    assert book.states() == {"n1": NodePowerState(WAKING, 1010.0), "n2": NodePowerState(ASLEEP, 1010.0)}
    assert book.move("n1", WAKING, None)
    assert book.states() == {"n2": NodePowerState(ASLEEP, 1010.0)}


@pytest.mark.parametrize(
    ("before", "after"), [(None, ASLEEP), (WAKING, ASLEEP), (WAKING, None), (None, WAKING)]
)
def test_a_step_from_another_state_changes_nothing(
    book: SqlNodeSleep, clock: ManualClock, before: NodePower | None, after: NodePower | None
) -> None:
    """Whoever comes second finds the node elsewhere."""
    assert book.move("n1", None, ASLEEP)
    clock.advance(10)
    assert not book.move("n1", before, after)
    assert book.states() == {"n1": NodePowerState(ASLEEP, 1000.0)}


@pytest.mark.parametrize(("before", "after"), [(ASLEEP, WAKING), (ASLEEP, None)])
def test_a_node_that_is_up_takes_no_step_of_sleep(
    book: SqlNodeSleep, before: NodePower, after: NodePower | None
) -> None:
    """There is nothing to wake or end."""
    assert not book.move("n1", before, after)
    assert book.states() == {}
