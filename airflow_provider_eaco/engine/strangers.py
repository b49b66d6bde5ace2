"""Somebody else uses GPUs that tasks hold: seen right before a start, and later, where those that can leave
are asked to if that is wanted.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from airflow_provider_eaco.core.model.booking import Booking, gpus_in_words
from airflow_provider_eaco.core.model.gpu import Gpu, GpuReading
from airflow_provider_eaco.core.model.placement import LeaseState, Placement
from airflow_provider_eaco.core.model.pool import StrangerAction
from airflow_provider_eaco.core.model.snapshot import ClusterSnapshot, GpuSet
from airflow_provider_eaco.core.policy.trial import newest_that_can_yield
from airflow_provider_eaco.core.ports import DecisionLog, Ledger


def make_room(ledger: Ledger, decisions: DecisionLog, snapshot: ClusterSnapshot) -> list[str]:
    """Ask the newest member that can of every set beside strangers to leave; return the jobs that were asked.

    One member at a time, and nothing is learnt of the set: it is not its members that do not go together. Who
    saves no checkpoints goes on. Whoever has booked the GPUs counts as a stranger there from the beginning of
    the booking on, and each job that is there is told of it once, whether it is asked to leave or not.
    """
    leaves = snapshot.pool.settings.strangers is StrangerAction.YIELD
    running = [each for each in snapshot.bookings if each.runs_at(snapshot.now_s)]
    if not leaves and not running:
        return []
    asked = []
    for name in sorted(snapshot.nodes):
        booked = [each for each in running if each.placement.node == name]
        for held in snapshot.nodes[name].sets:
            why = _booked(held, booked, ledger, decisions, snapshot.now_s)
            where = _used_by_strangers(held, snapshot) if leaves and why is None else []
            if where:
                why = f"somebody else uses {', '.join(where)}"
            leaver = newest_that_can_yield(held) if leaves and why else None
            if leaver is None or any(each.state is LeaseState.YIELDING for each in held.residents):
                continue
            job_id = leaver.job.job_id
            if ledger.ask_to_yield(job_id, leaver.set_version):
                decisions.record_event(job_id, "displaced", f"asked to leave: {why}", snapshot.now_s)
                asked.append(job_id)
    return asked


def _booked(
    held: GpuSet, bookings: Iterable[Booking], ledger: Ledger, decisions: DecisionLog, now_s: float
) -> str | None:
    """Return by whom the set's GPUs are booked now, ``None`` if by nobody, once its members were told."""
    why = None
    for booking in bookings:
        shared = set(booking.placement.gpu_uuids).intersection(held.placement.gpu_uuids)
        if not shared:
            continue
        gpus = gpus_in_words(Placement(held.placement.node, tuple(sorted(shared))), _indices(held))
        why = f"{gpus} is booked by {booking.name} {booking.span}"
        for resident in held.residents:
            known = resident.token in booking.told
            if not known and ledger.tell_of_booking(booking.booking_id, resident.token):
                decisions.record_event(resident.job.job_id, "booked", why, now_s)
    return why


def _indices(held: GpuSet) -> dict[str, str]:
    return {gpu.uuid: str(gpu.index) for gpu in held.gpus if gpu.index >= 0}


def used_before_start(
    placement: Placement,
    gpus: Iterable[Gpu],
    readings: Iterable[GpuReading],
    margin_mib: int | None,
    *,
    alone: bool,
) -> list[str]:
    """Return those of the GPUs that somebody else is known to use, looked at right before a start (C34).

    :param gpus: the GPUs of the node.
    :param margin_mib: what the pool leaves free; ``None`` if that is not known, and then only processes that
        are seen count.
    :param alone: nobody of ours is there yet.
    """
    by_uuid = {gpu.uuid: gpu for gpu in gpus}
    found = []
    for reading in readings:
        if reading.uuid not in placement.gpu_uuids:
            continue
        gpu = by_uuid.get(reading.uuid)
        # What is used without a process that can be seen is told apart from the driver's own only where that
        # is known.
        seen = _with_unlisted(reading) if alone and gpu is not None and gpu.memory_reserved_mib else reading
        if seen.foreign_processes or (margin_mib is not None and seen.is_used_by_others(margin_mib)):
            found.append(reading.uuid)
    return found


def _with_unlisted(reading: GpuReading) -> GpuReading:
    """Return the reading of a GPU without a run of ours: all memory in use there is somebody else's."""
    known = [each for each in (reading.foreign_memory_mib, reading.memory_used_mib) if each is not None]
    return replace(reading, foreign_memory_mib=max(known, default=None))


def _used_by_strangers(held: GpuSet, snapshot: ClusterSnapshot) -> list[str]:
    """Return the GPUs of the set that somebody else is known to use; what is unknown moves nobody."""
    margin_mib = snapshot.pool.settings.memory_margin_mib
    readings = ((gpu.uuid, snapshot.readings.get(gpu.uuid)) for gpu in held.gpus)
    return [uuid for uuid, seen in readings if seen is not None and seen.is_used_by_others(margin_mib)]
