"""The pool manager: keeps the inventory in the ledger, sizes the Airflow pool, and counts what is in use."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from airflow_provider_eaco.core.lifecycle import JobPhase
from airflow_provider_eaco.core.model.errors import InvalidSettingError
from airflow_provider_eaco.core.model.gpu import GpuHealth, Node
from airflow_provider_eaco.core.model.snapshot import PoolState
from airflow_provider_eaco.core.ports import Ledger, LedgerView, Telemetry
from airflow_provider_eaco.engine.snapshots import gpu_pool_of, may_use, used_slots


class Inventory:
    """Tells the ledger which nodes and GPUs the meters of this machine see.

    Nodes are written when they change and at least every ``heartbeat_s``, so that the ledger knows they are
    alive; choose it well below the planner's report time-out. A node that no meter sees is forgotten.
    """

    def __init__(self, ledger: Ledger, telemetries: Sequence[Telemetry], heartbeat_s: float = 30.0) -> None:
        self._ledger = ledger
        self._telemetries = tuple(telemetries)
        self._heartbeat_s = heartbeat_s
        self._seen: list[tuple[Node, ...]] = [() for _ in telemetries]
        self._saved: tuple[Node, ...] | None = None
        self._saved_s = 0.0

    def reconcile(self, now_s: float) -> bool:
        """Bring the ledger up to what the meters see at ``now_s``; return whether anything was written.

        A meter that fails keeps its nodes listed with GPUs of unknown health: nothing new starts there and
        nothing that runs is touched, until it works again (C49).

        :raises InvalidSettingError: if two meters report a node of the same name or the same GPU.
        :raises StoreUnavailableError: if the ledger cannot be written; the next call tries again.
        """
        nodes = self._look()
        due = self._saved is None or now_s - self._saved_s >= self._heartbeat_s
        if nodes == self._saved and not due:
            return False
        gone = {node.name for node in self._saved or ()} - {node.name for node in nodes}
        if nodes:
            self._ledger.save_nodes(nodes)
        for name in sorted(gone):
            self._ledger.forget_node(name)
        self._saved, self._saved_s = nodes, now_s
        return bool(nodes or gone)

    def _look(self) -> tuple[Node, ...]:
        for position, telemetry in enumerate(self._telemetries):
            try:
                self._seen[position] = tuple(
                    replace(node, last_report_s=None) for node in telemetry.inventory()
                )
            except Exception:  # noqa: BLE001 - a driver may fail in any way; running tasks must not notice
                self._seen[position] = tuple(_unknown(node) for node in self._seen[position])
        nodes = tuple(node for seen in self._seen for node in seen)
        _check_names(nodes)
        return nodes


def forget_silent_nodes(ledger: Ledger, view: LedgerView, after_s: float) -> tuple[str, ...]:
    """Forget the nodes that have not reported for ``after_s``, and return their names.

    Those with leases stay, unavailable, until the leases end.
    """
    silent = tuple(
        node.name
        for node in view.nodes
        if node.last_report_s is not None and view.now_s - node.last_report_s > after_s
    )
    for name in silent:
        ledger.forget_node(name)
    return silent


def wanted_slots(view: LedgerView, pool: PoolState, hold_window: int) -> int:
    """Return the size that the pool's Airflow pool should have.

    Airflow counts held tasks as occupying slots, so there is one for each task that may be held, and one for
    each that can run at the same time on the pool's GPUs.
    """
    gpus = sum(len(node.gpus) for node in view.nodes if may_use(pool.settings, node.name))
    return hold_window + gpus * pool.settings.max_residents


def slots_to_write(wanted: int, present: int | None, last_written: int | None) -> int | None:
    """Return the size to write to the Airflow pool now, ``None`` to leave it as it is.

    :param present: its size now, ``None`` if there is no such pool.
    :param last_written: what was written last, ``None`` if never. A size that differs from it was set by a
        user and stays, until the record of it is reset.
    """
    if present is None:
        return wanted
    if present != last_written or present == wanted:
        return None
    return wanted


@dataclass(frozen=True, slots=True)
class PoolNumbers:
    """What a page shows of a GPU pool, all from one view: parts add up and nothing is negative (C64).

    ``gpus`` = ``gpus_held`` + ``gpus_free``; ``gpus_shared`` of those held have two or more residents.
    ``slots`` of the Airflow pool are ``None`` if unlimited or if there is no such pool; then so is
    ``slots_open``, which is otherwise never below 0, however far the pool was shrunk (C11).
    """

    pool: str
    nodes: int
    gpus: int
    gpus_held: int
    gpus_free: int
    gpus_shared: int
    waiting: int
    on_hold: int
    leased: int
    running: int
    slots: int | None
    slots_used: int
    slots_open: int | None


def count_pools(view: LedgerView, pools: Sequence[PoolState]) -> tuple[PoolNumbers, ...]:
    """Return the numbers of every declared pool. Nodes that several pools may use count in each of them."""
    residents: dict[str, int] = {}
    for lease in view.leases:
        for uuid in lease.placement.gpu_uuids:
            residents[uuid] = residents.get(uuid, 0) + 1
    return tuple(_count_pool(view, pool, pools, residents) for pool in pools)


def _count_pool(
    view: LedgerView, pool: PoolState, pools: Sequence[PoolState], residents: dict[str, int]
) -> PoolNumbers:
    name = pool.settings.name
    nodes = [node for node in view.nodes if may_use(pool.settings, node.name)]
    on_gpu = [residents.get(gpu.uuid, 0) for node in nodes for gpu in node.gpus]
    jobs = [record for record in view.jobs if gpu_pool_of(record.job.pool, pools) == name]
    phases = [record.phase for record in jobs]
    airflow_pool = pool.airflow_pools.get(name)
    slots = None if airflow_pool is None else airflow_pool.slots
    used = used_slots(view).get(name, 0)
    return PoolNumbers(
        pool=name,
        nodes=len(nodes),
        gpus=len(on_gpu),
        gpus_held=sum(count > 0 for count in on_gpu),
        gpus_free=sum(count == 0 for count in on_gpu),
        gpus_shared=sum(count > 1 for count in on_gpu),
        waiting=phases.count(JobPhase.WAITING),
        on_hold=sum(record.phase is JobPhase.WAITING and record.job.on_hold for record in jobs),
        leased=phases.count(JobPhase.LEASED),
        running=phases.count(JobPhase.RUNNING),
        slots=slots,
        slots_used=used,
        slots_open=None if slots is None else max(0, slots - used),
    )


def _unknown(node: Node) -> Node:
    return replace(node, gpus=tuple(replace(gpu, health=GpuHealth.UNKNOWN) for gpu in node.gpus))


def _check_names(nodes: Sequence[Node]) -> None:
    names: set[str] = set()
    uuids: set[str] = set()
    for node in nodes:
        if node.name in names:
            raise InvalidSettingError(
                "[eaco] simulated_nodes", f"two meters report a node {node.name!r}; node names must differ"
            )
        names.add(node.name)
        for gpu in node.gpus:
            if gpu.uuid in uuids:
                raise InvalidSettingError(
                    "[eaco] simulated_nodes", f"GPU {gpu.uuid} is reported twice; each belongs to one node"
                )
            uuids.add(gpu.uuid)
