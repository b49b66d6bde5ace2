"""Which GPU pools give way to others in what Airflow hands over (case C03)."""

from __future__ import annotations

import pytest

from airflow_provider_eaco.provider.pool_sizes import PoolLoad, closed_pools
from airflow_provider_eaco.provider.task_instances import PoolCount


def loads(**counts: tuple[int, int, int]) -> dict[str, PoolLoad]:
    """Return loads from (ready, active, places) by pool."""
    return {
        name: PoolLoad(PoolCount(ready, active), places) for name, (ready, active, places) in counts.items()
    }


@pytest.mark.parametrize(
    ("busy", "idle", "closed"),
    [
        ((984, 16, 20), (100, 0, 20), set()),
        ((980, 20, 20), (100, 0, 20), {"busy"}),
        ((900, 100, 20), (84, 16, 20), {"busy"}),
        ((900, 100, 20), (61, 39, 20), {"busy"}),
        ((900, 100, 20), (60, 40, 20), set()),
        ((900, 100, 20), (0, 16, 20), set()),
        ((0, 100, 20), (84, 16, 20), {"busy"}),
        ((968, 32, 20), (68, 32, 20), set()),
        ((900, 100, 0), (100, 0, 20), set()),
        ((900, 100, 20), (100, 0, 0), set()),
    ],
    ids=[
        "its own GPUs are not filled yet",
        "its GPUs are filled, the other's are free",
        "the other's GPUs are not all in use",
        "one too few wait there",
        "enough wait there",
        "nothing is ready there",
        "nothing more is ready here",
        "both have as many",
        "it has no GPUs",
        "the other has no GPUs",
    ],
)
def test_c03_a_full_pool_gives_way_to_one_with_ready_tasks_and_too_few_to_choose_from(
    busy: tuple[int, int, int], idle: tuple[int, int, int], closed: set[str]
) -> None:
    """Each place of a pool has a task and another one in reserve before another pool has more."""
    assert closed_pools(loads(busy=busy, idle=idle)) == closed


def test_c03_of_three_pools_only_those_with_more_than_the_neediest_give_way() -> None:
    """A pool that is as needy as the neediest stays open."""
    found = closed_pools(loads(a=(100, 60, 20), b=(100, 20, 20), c=(100, 20, 20)))
    assert found == {"a"}


def test_c03_without_any_tasks_nothing_is_closed() -> None:
    """No pool, no task: nothing to decide."""
    assert closed_pools({}) == frozenset()
