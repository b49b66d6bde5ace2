"""Limits of nodes with a worker as a scheduler sees them, over a store that the test fills."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import pytest

from airflow_provider_eaco.core.model.board_limits import LimitInForce, NodeLimits
from airflow_provider_eaco.core.model.errors import StoreUnavailableError
from airflow_provider_eaco.core.model.instruction import SetPowerLimit
from airflow_provider_eaco.core.model.placement import Placement
from airflow_provider_eaco.provider.node_limits import LimitsElsewhere, NoLimitStore
from tests.builders import make_node

NODE = make_node("n1", gpus=3).node
A, B, C = (Placement("n1", (gpu.uuid,)) for gpu in NODE.gpus)
LIMIT = LimitInForce(200.0, (300.0,))


class Store:
    """What nodes have told and schedulers want; ``calls`` is what was written."""

    def __init__(self) -> None:
        self.told: dict[str, NodeLimits | None] = {"n1": NodeLimits()}
        self.wanted: dict[Placement, float] = {}
        self.calls: list[tuple[str, object]] = []
        self.is_away = False

    def read(self) -> tuple[Mapping[str, NodeLimits | None], Mapping[Placement, float]]:
        return dict(self.told), dict(self.wanted)

    def want(self, limits_w: Mapping[Placement, float]) -> None:
        self._write("want", dict(limits_w))

    def drop(self, placements: Collection[Placement]) -> None:
        self._write("drop", set(placements))

    def sweep(self) -> None:
        self._write("sweep", None)

    def _write(self, name: str, what: object) -> None:
        if self.is_away:
            raise StoreUnavailableError("away")
        self.calls.append((name, what))


@pytest.fixture
def store() -> Store:
    return Store()


def seen(store: Store) -> LimitsElsewhere:
    limits = LimitsElsewhere(store)
    limits.look()
    return limits


def test_what_may_not_stay_is_dropped_and_what_nobody_holds_is_swept(store: Store) -> None:
    """What is held and may stay is left alone."""
    store.wanted = {A: 200.0}
    seen(store).keep({A: True, B: False})
    assert store.calls == []
    store.wanted = {A: 200.0, B: 200.0}
    seen(store).keep({A: True, B: False})
    assert store.calls == [("drop", {B})]
    store.calls.clear()
    store.wanted = {A: 200.0, C: 200.0}
    seen(store).keep({A: True, B: False})
    assert store.calls == [("sweep", None)]


def test_only_news_are_written(store: Store) -> None:
    """A plan wants the same in every cycle until it is in force; what is lifted is dropped."""
    limits = seen(store)
    limits.want([SetPowerLimit(A, 200.0), SetPowerLimit(B, None)])
    limits.want([SetPowerLimit(A, 200.0)])
    limits.want([SetPowerLimit(A, 180.0)])
    assert store.calls == [("want", {A: 200.0}), ("drop", {B}), ("want", {A: 180.0})]


def test_what_cannot_be_written_is_wanted_again(store: Store) -> None:
    """A cycle that has granted GPUs is not broken by it."""
    limits = seen(store)
    store.is_away = True
    limits.want([SetPowerLimit(A, 200.0)])
    store.is_away = False
    limits.want([SetPowerLimit(A, 200.0)])
    assert store.calls == [("want", {A: 200.0})]


def test_boards_are_touched_from_the_wish_until_the_node_tells_that_nothing_is_left(store: Store) -> None:
    """In between a limit may be there, whatever is known."""
    limits = seen(store)
    assert (limits.touched, limits.is_idle) == (set(), True)
    limits.want([SetPowerLimit(A, 200.0)])
    assert (limits.touched, limits.is_idle) == ({A}, False)
    store.told["n1"] = NodeLimits(noted=frozenset({B}))
    assert seen(store).touched == {B}
    store.told["n1"] = None
    assert seen(store).touched == set()


def test_a_refusal_counts_while_the_limit_is_wanted(store: Store) -> None:
    """What a node told before it heard that nobody wants it any more says nothing about a pool now."""
    store.told["n1"] = NodeLimits(refused={A: "out of range", B: "MIG"})
    store.wanted = {A: 200.0}
    assert seen(store).refused == {A: "out of range"}


def test_what_a_node_tells_of_its_gpus(store: Store) -> None:
    """A worker that knows no limits takes none on any; a node without a worker tells nothing."""
    told: dict[str, str | None] = {A.gpu_uuids[0]: None, B.gpu_uuids[0]: "MIG"}
    store.told["n1"] = NodeLimits(permits=told, in_force={A: LIMIT})
    limits = seen(store)
    assert (limits.causes_of(NODE), limits.in_force, limits.has("n1")) == (told, {A: LIMIT}, True)
    store.told["n1"] = None
    causes = seen(store).causes_of(NODE)
    assert causes is not None
    assert set(causes) == {gpu.uuid for gpu in NODE.gpus}
    assert all("knows no power limits" in str(cause) for cause in causes.values())
    assert LimitsElsewhere(NoLimitStore()).causes_of(NODE) is None


def test_before_the_first_look_nothing_is_known(store: Store) -> None:
    """So there may be something to do."""
    assert not LimitsElsewhere(store).is_idle
    assert seen(store).is_idle
