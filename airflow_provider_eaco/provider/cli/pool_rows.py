"""Pools and totals, as rows of text built from what is stored."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from airflow_provider_eaco.core.lifecycle import JobPhase
from airflow_provider_eaco.core.model.gpu import GpuReading
from airflow_provider_eaco.core.model.pool import PoolMode, PoolSettings
from airflow_provider_eaco.core.model.snapshot import AirflowPool, PoolState
from airflow_provider_eaco.core.ports import LedgerView
from airflow_provider_eaco.engine.pool_manager import PoolNumbers, count_pools
from airflow_provider_eaco.engine.snapshots import gpu_pool_of, used_slots
from airflow_provider_eaco.provider.cli.rows import node_rows, power_w
from airflow_provider_eaco.provider.shown import UNKNOWN, shown_energy, shown_number

UNLIMITED = "unlimited"
# Of a job that was handed over a moment ago the Airflow pool is not known yet: its name is empty.
NOT_LOOKED_UP = "just queued: the scheduler looks their pool up at its next heartbeat"


@dataclass(frozen=True, slots=True)
class Summary:
    """All nodes and jobs together. ``energy`` is that of all tasks of which it is recorded."""

    gpus: str
    gpus_used: str
    gpus_unhealthy: str
    gpus_unknown: str
    waiting: str
    running: str
    power: str
    energy: str


@dataclass(frozen=True, slots=True)
class PoolRow:
    """One GPU pool. Nodes that several pools may use count in each; ``running`` holds GPUs."""

    pool: str
    mode: str
    policy: str
    ordering: str
    nodes: str
    gpus: str
    gpus_used: str
    gpus_shared: str
    waiting: str
    on_hold: str
    running: str


@dataclass(frozen=True, slots=True)
class AirflowPoolRow:
    """One Airflow pool and the GPU pool it leads to; ``used`` are the slots of tasks that hold GPUs."""

    airflow_pool: str
    pool: str
    slots: str
    used: str
    open: str
    waiting: str
    note: str


def summary(view: LedgerView, readings: Mapping[str, GpuReading], energy_j: float | None) -> Summary:
    """Return what there is in all; ``energy_j`` is ``None`` if nothing was measured."""
    rows = node_rows(view, readings)
    gpus = [gpu for node in view.nodes for gpu in node.gpus]
    return Summary(
        gpus=str(len(gpus)),
        gpus_used=str(sum(int(row.gpus_used) for row in rows)),
        gpus_unhealthy=str(sum(int(row.gpus_unhealthy) for row in rows)),
        gpus_unknown=str(sum(int(row.gpus_unknown) for row in rows)),
        waiting=str(sum(record.phase is JobPhase.WAITING for record in view.jobs)),
        running=str(len({lease.job_id for lease in view.leases})),
        power=shown_number(power_w(gpus, readings), 0, "W"),
        energy=shown_energy(energy_j),
    )


def pool_rows(view: LedgerView, states: Sequence[PoolState]) -> list[PoolRow]:
    """Return the declared GPU pools with the numbers that every surface shows."""
    settings_of = {state.settings.name: state.settings for state in states}
    return [_pool_row(numbers, settings_of[numbers.pool]) for numbers in count_pools(view, states)]


def _pool_row(numbers: PoolNumbers, settings: PoolSettings) -> PoolRow:
    return PoolRow(
        pool=numbers.pool,
        mode=str(settings.mode.value),
        policy=_policy_name(settings),
        ordering=settings.ordering,
        nodes=str(numbers.nodes),
        gpus=str(numbers.gpus),
        gpus_used=str(numbers.gpus_held),
        gpus_shared=str(numbers.gpus_shared),
        waiting=str(numbers.waiting),
        on_hold=str(numbers.on_hold),
        running=str(numbers.leased + numbers.running),
    )


def _policy_name(settings: PoolSettings) -> str:
    """Return the policy that decides for the pool: in ``observe`` the configured one, as in ``share``."""
    return PoolMode.EXCLUSIVE.value if settings.mode is PoolMode.EXCLUSIVE else settings.policy


def airflow_pool_rows(view: LedgerView, states: Sequence[PoolState]) -> list[AirflowPoolRow]:
    """Return the Airflow pool of each GPU pool's name, then the other Airflow pools that jobs come from.

    :param states: the declared GPU pools, with all pools that Airflow has.
    """
    declared = [state.settings.name for state in states]
    others = sorted({record.job.pool for record in view.jobs} - set(declared))
    return [_airflow_pool_row(name, view, states) for name in (*declared, *others)]


def _airflow_pool_row(name: str, view: LedgerView, states: Sequence[PoolState]) -> AirflowPoolRow:
    gpu_pool = gpu_pool_of(name, states)
    state = next(state for state in states if state.settings.name == gpu_pool)
    airflow_pool = state.airflow_pools.get(name)
    used = used_slots(view).get(name, 0)
    limited = None if airflow_pool is None else airflow_pool.slots
    waiting = [r for r in view.jobs if r.job.pool == name and r.phase is JobPhase.WAITING]
    return AirflowPoolRow(
        airflow_pool=name or UNKNOWN,
        pool=gpu_pool,
        slots=_slots(airflow_pool, limited),
        used=str(used),
        open=_slots(airflow_pool, None if limited is None else max(0, limited - used)),
        waiting=str(len(waiting)),
        note=_pool_note(name, state.settings, airflow_pool, used),
    )


def _slots(airflow_pool: AirflowPool | None, slots: int | None) -> str:
    if airflow_pool is None:
        return UNKNOWN
    return UNLIMITED if slots is None else str(slots)


def _pool_note(name: str, settings: PoolSettings, airflow_pool: AirflowPool | None, used: int) -> str:
    if settings.mode is PoolMode.OFF:
        return "off: tasks pass through"
    if airflow_pool is None:
        return _missing_note(name, settings)
    slots = airflow_pool.slots
    if slots == 0:
        return "closed: it has 0 slots, nothing starts"
    if slots is not None and used > slots:
        return f"closed: {used} slots in use of {slots}; nothing starts until they are fewer"
    if slots is not None and used == slots:
        return "full"
    return "observe: nothing is held" if settings.mode is PoolMode.OBSERVE else ""


def _missing_note(name: str, settings: PoolSettings) -> str:
    if name == settings.name:
        return "not made yet: a scheduler with the executor makes it"
    return "does not exist in Airflow" if name else NOT_LOOKED_UP
