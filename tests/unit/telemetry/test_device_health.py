"""Whether new work may start on a GPU, from what its driver says of it."""

from __future__ import annotations

import pytest

from airflow_provider_eaco.core.model.gpu import GpuHealth
from airflow_provider_eaco.telemetry.device_health import CLEAN_S, QUARANTINE_S, HealthBook
from airflow_provider_eaco.telemetry.nvml_sample import DeviceState

OK, LOST, SILENT = DeviceState.OK, DeviceState.LOST, DeviceState.SILENT
HEALTHY, UNHEALTHY, UNKNOWN = GpuHealth.HEALTHY, GpuHealth.UNHEALTHY, GpuHealth.UNKNOWN

# Steps of (instant, state, Xids, expected health).
STORIES = {
    "nothing happens": [(0, OK, (), HEALTHY), (1, OK, (), HEALTHY)],
    "a program's fault": [(0, OK, (94,), HEALTHY), (1, OK, (13, 31, 43, 45), HEALTHY)],
    "the hardware's, and time goes by": [
        (0, OK, (48,), UNHEALTHY),
        (QUARANTINE_S - 1, OK, (), UNHEALTHY),
        (QUARANTINE_S, OK, (), HEALTHY),
    ],
    "again before it is over": [
        (0, OK, (48,), UNHEALTHY),
        (500, OK, (48,), UNHEALTHY),
        (QUARANTINE_S, OK, (), UNHEALTHY),
        (500 + QUARANTINE_S, OK, (), HEALTHY),
    ],
    "one that nobody knows": [(0, OK, (4711,), UNHEALTHY)],
    "off the bus, reset, back": [
        (0, OK, (79,), UNHEALTHY),
        (1, LOST, (), UNHEALTHY),
        (30, OK, (), UNHEALTHY),
        (30 + CLEAN_S, OK, (), HEALTHY),
        (31 + CLEAN_S, OK, (), HEALTHY),
    ],
    "lost without an Xid": [(0, LOST, (), UNHEALTHY), (5, OK, (), UNHEALTHY), (5 + CLEAN_S, OK, (), HEALTHY)],
    "back for a moment only": [
        (0, LOST, (), UNHEALTHY),
        (5, OK, (), UNHEALTHY),
        (6, LOST, (), UNHEALTHY),
        (5 + CLEAN_S, OK, (), UNHEALTHY),
        (5 + 2 * CLEAN_S, OK, (), HEALTHY),
    ],
    "silent for a while": [(0, SILENT, (), UNKNOWN), (1, OK, (), HEALTHY)],
}


@pytest.mark.parametrize("story", STORIES.values(), ids=STORIES)
def test_c50_a_gpu_is_drained_and_returns_by_itself(
    story: list[tuple[float, DeviceState, tuple[int, ...], GpuHealth]],
) -> None:
    """A program's Xid drains nothing, the hardware's for a while; a lost GPU is back once it answers."""
    book = HealthBook()
    for at_s, state, xids, expected in story:
        verdict = book.judge("GPU-1", at_s, state, xids)
        assert (at_s, verdict.health) == (at_s, expected)
        assert (verdict.why is None) == (expected is HEALTHY)


def test_each_gpu_has_its_own_past() -> None:
    """What one card did is nothing to its neighbour."""
    book = HealthBook()
    book.judge("GPU-1", 0.0, OK, (48,))
    assert book.judge("GPU-2", 0.0, OK).health is HEALTHY
