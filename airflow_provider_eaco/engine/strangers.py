"""Somebody else uses GPUs that tasks hold: where that is wanted, those that can leave are asked to."""

from __future__ import annotations

from airflow_provider_eaco.core.model.placement import LeaseState
from airflow_provider_eaco.core.model.pool import StrangerAction
from airflow_provider_eaco.core.model.snapshot import ClusterSnapshot, GpuSet
from airflow_provider_eaco.core.policy.trial import newest_that_can_yield
from airflow_provider_eaco.core.ports import DecisionLog, Ledger


def make_room(ledger: Ledger, decisions: DecisionLog, snapshot: ClusterSnapshot) -> list[str]:
    """Ask the newest member that can of every set beside strangers to leave; return the jobs that were asked.

    One member at a time, and nothing is learnt of the set: it is not its members that do not go together. Who
    saves no checkpoints goes on.
    """
    if snapshot.pool.settings.strangers is not StrangerAction.YIELD:
        return []
    asked = []
    for name in sorted(snapshot.nodes):
        for held in snapshot.nodes[name].sets:
            where = _used_by_strangers(held, snapshot)
            leaver = newest_that_can_yield(held) if where else None
            if leaver is None or any(each.state is LeaseState.YIELDING for each in held.residents):
                continue
            job_id = leaver.job.job_id
            if ledger.ask_to_yield(job_id, leaver.set_version):
                text = f"asked to leave: somebody else uses {', '.join(where)}"
                decisions.record_event(job_id, "displaced", text, snapshot.now_s)
                asked.append(job_id)
    return asked


def _used_by_strangers(held: GpuSet, snapshot: ClusterSnapshot) -> list[str]:
    """Return the GPUs of the set on which somebody else computes, or holds more than the pool's margin."""
    found = []
    for gpu in held.gpus:
        reading = snapshot.readings.get(gpu.uuid)
        if reading is not None and (
            reading.foreign_processes
            or (reading.foreign_memory_mib or 0) > snapshot.pool.settings.memory_margin_mib
        ):
            found.append(gpu.uuid)
    return found
