"""The report of energy: by month and team, pool, DAG and family, with sums that are the devices'. Pure.

Unknown is ``None``: no cost without a price, no CO2e without a factor, nothing saved without a profile.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from airflow_provider_eaco.core.energy.accounting import DeviceTotals, EnergyMethod
from airflow_provider_eaco.core.lifecycle import JobPhase
from airflow_provider_eaco.core.model.profile import PowerScope, ProfileBook, SoloProfile
from airflow_provider_eaco.core.ports import JobRecord
from airflow_provider_eaco.provider.energy_record import stretch_of
from airflow_provider_eaco.provider.settings import EacoSettings
from airflow_provider_eaco.provider.shown import JOULES_PER_KWH, UNKNOWN
from airflow_provider_eaco.provider.teams import team_shown

if TYPE_CHECKING:
    from airflow_provider_eaco.store.energy_months import EnergyMonths, JobMonth

T = TypeVar("T")

ALL_MONTHS = "all"
_MONTH = re.compile(r"[0-9]{4}-(0[1-9]|1[0-2])")
METHOD = (
    "Saved is what the finished tries of the group would have used alone, less what they used: finished "
    "units x unit time alone x draw alone, both from the profile of the family on the same GPU model and "
    "number of GPUs, where that profile and the meter cover the same part of the machine. A try without such "
    "a profile, or over the end of a month, is compared in neither sum; the line says how many tries were "
    "compared."
)

_OPEN = frozenset({JobPhase.WAITING, JobPhase.LEASED, JobPhase.RUNNING, JobPhase.YIELDED})


@dataclass(frozen=True, slots=True)
class Line:
    """One group in one month.

    ``group`` is team, pool, dag or family; of families only finished tries count, of the others all, with
    ``failed_j`` apart. ``tries`` are those that used GPUs in the month. ``gpu_h`` are hours of GPUs.
    ``wait_s`` is the mean wait for the first start, ``stretch`` run time / exclusive run time over all of
    which both are known. ``compared`` of the tries are in ``saved_j``.
    """

    month: str
    group: str
    name: str
    tries: int
    energy_j: float | None
    partial: bool
    failed_j: float
    gpu_h: float
    wait_s: float | None
    stretch: float | None
    saved_j: float | None
    compared: int
    cost: float | None
    co2e_g: float | None


@dataclass(frozen=True, slots=True)
class MonthSums:
    """One month of all GPUs: finished + failed + open + idle + strangers + unmatched - excess = devices.

    ``open_j`` is of tries that have not ended, ``unmatched_j`` what the devices gave to runs and no try has
    stored (yet), ``excess_j`` what tries have stored beyond it. Where no meter stored its counters,
    ``devices_j`` and what only the devices tell are unknown; ``unknown_s`` are seconds of GPUs of which
    nothing is known. ``node_j`` is what machines with a power meter of their own took, ``node_gpus_j`` their
    GPUs in the same time.
    """

    month: str
    finished_j: float
    failed_j: float
    open_j: float
    idle_j: float | None
    strangers_j: float | None
    unmatched_j: float | None
    excess_j: float | None
    devices_j: float | None
    unknown_s: float
    node_j: float | None
    node_gpus_j: float | None
    cost: float | None
    co2e_g: float | None


@dataclass(frozen=True, slots=True)
class Report:
    """Everything, the newest month first. ``price_per_kwh`` and ``carbon_g_per_kwh`` are the site's."""

    months: tuple[MonthSums, ...]
    lines: tuple[Line, ...]
    price_per_kwh: float | None
    currency: str
    carbon_g_per_kwh: float | None
    method: str = METHOD


def wrong_month(month: str) -> str | None:
    """Return what is wrong with a month that was asked for, ``None`` if it is one, or :data:`ALL_MONTHS`."""
    if month == ALL_MONTHS or _MONTH.fullmatch(month):
        return None
    return f"{month!r} must be a month such as 2026-12, or {ALL_MONTHS}"


def make_report(
    stored: EnergyMonths,
    book: ProfileBook,
    settings: EacoSettings,
    *,
    name_instead: Callable[[JobRecord], str | None] = lambda _: None,
) -> Report:
    """Return the report of what is stored, with the site's price and factor as they are now.

    :param name_instead: what stands for every name of a try that is not to be told; ``None`` if its own do.
    """
    groups: dict[tuple[str, str, str], list[JobMonth]] = defaultdict(list)
    for each in stored.jobs:
        instead = None if each.record is None else name_instead(each.record)
        for kind, name in _names(each, settings):
            groups[each.month, kind, name if instead is None else instead].append(each)
    lines = [_line(key, tries, book, settings) for key, tries in groups.items()]
    return Report(
        months=tuple(_months(stored, settings)),
        lines=tuple(sorted(lines, key=lambda line: (_newest_first(line.month), line.group, line.name))),
        price_per_kwh=settings.price_per_kwh,
        currency=settings.currency,
        carbon_g_per_kwh=settings.carbon_g_per_kwh,
    )


def _newest_first(month: str) -> tuple[int, int]:
    year, number = month.split("-")
    return -int(year), -int(number)


def _names(one: JobMonth, settings: EacoSettings) -> list[tuple[str, str]]:
    """Return the groups that the try belongs to."""
    if one.record is None:
        return [(kind, UNKNOWN) for kind in ("team", "pool", "dag")]
    job = one.record.job
    team = team_shown(job, settings) or UNKNOWN
    names = [("team", team), ("pool", job.pool or UNKNOWN), ("dag", job.order.dag_id)]
    if one.record.phase is JobPhase.FINISHED:
        names.append(("family", job.request.family))
    return names


def _line(
    key: tuple[str, str, str],
    tries: Sequence[JobMonth],
    book: ProfileBook,
    settings: EacoSettings,
) -> Line:
    month, kind, name = key
    energy_j = _sum([part for one in tries for part in one.parts_j])
    saved = [_saved_j(one, book) for one in tries]
    known_saved = [value for value in saved if value is not None]
    waits = [wait for one in tries if (wait := _wait_s(one.record)) is not None]
    failed = [part for one in tries if _is_failed(one.record) for part in one.parts_j]
    return Line(
        month=month,
        group=kind,
        name=name,
        tries=len(tries),
        energy_j=energy_j,
        partial=any(one.partial for one in tries),
        failed_j=_sum(failed) or 0.0,
        gpu_h=math.fsum(one.gpu_s for one in tries) / 3600,
        wait_s=math.fsum(waits) / len(waits) if waits else None,
        stretch=_stretch(tries, book),
        saved_j=math.fsum(known_saved) if known_saved else None,
        compared=len(known_saved),
        cost=_times(energy_j, settings.price_per_kwh),
        co2e_g=_times(energy_j, settings.carbon_g_per_kwh),
    )


def _sum(parts: Iterable[float | None]) -> float | None:
    known = [part for part in parts if part is not None]
    return math.fsum(known) if known else None


def _times(energy_j: float | None, per_kwh: float | None) -> float | None:
    return None if energy_j is None or per_kwh is None else energy_j / JOULES_PER_KWH * per_kwh


def _is_failed(record: JobRecord | None) -> bool:
    return record is not None and record.phase in {JobPhase.FAILED, JobPhase.REMOVED, JobPhase.REJECTED}


def _wait_s(record: JobRecord | None) -> float | None:
    if record is None or record.started_s is None:
        return None
    return max(0.0, record.started_s - record.job.queued_s)


def _profile(one: JobMonth, book: ProfileBook) -> SoloProfile | None:
    if one.record is None or len(one.gpu_models) != 1:
        return None
    (model,) = one.gpu_models
    request = one.record.job.request
    return book.solo_of(request.family, model, request.gpus)


def _stretch(tries: Sequence[JobMonth], book: ProfileBook) -> float | None:
    """Return the run time of all tries / their exclusive run time, of those of which both are known."""
    run_s, alone_s = [], []
    for one in tries:
        if one.record is None:
            continue
        profile, progress = _profile(one, book), one.record.job.progress
        stretch = stretch_of(progress, None if profile is None else profile.unit_s)
        if stretch is not None:
            run_s.append(progress.run_s)
            alone_s.append(progress.run_s / stretch)
    return math.fsum(run_s) / math.fsum(alone_s) if alone_s else None


def _saved_j(one: JobMonth, book: ProfileBook) -> float | None:
    """Return what the finished try would have used alone, less what it used; ``None`` if that is unknown."""
    profile, energy_j = _profile(one, book), _sum(one.parts_j)
    if profile is None or one.record is None or not one.is_whole:
        return None
    if energy_j is None or one.partial or None in one.parts_j:
        return None
    if one.record.phase is not JobPhase.FINISHED or profile.unit_s is None or profile.power_w is None:
        return None
    covered = PowerScope.NODE if EnergyMethod.MODEL in one.methods else PowerScope.BOARD
    if profile.scope is not covered or not one.record.job.progress.units_done:
        return None
    return one.record.job.progress.units_done * profile.unit_s * profile.power_w - energy_j


def _months(stored: EnergyMonths, settings: EacoSettings) -> list[MonthSums]:
    by_job = _by_month(stored.jobs, lambda one: one.month)
    by_device = _by_month(stored.devices, lambda row: row[0])
    by_node = _by_month(stored.nodes, lambda row: row[0])
    months = sorted(by_job.keys() | by_device.keys() | by_node.keys(), reverse=True)
    found = []
    for month in months:
        devices = [totals for _, _, totals in by_device.get(month, ())]
        nodes = [totals for _, _, totals in by_node.get(month, ())]
        node_j = math.fsum(each.node_j for each in nodes) if nodes else None
        node_gpus_j = math.fsum(each.gpus_j for each in nodes) if nodes else None
        found.append(_month(month, by_job.get(month, ()), devices, (node_j, node_gpus_j), settings))
    return found


def _by_month(rows: Iterable[T], month_of: Callable[[T], str]) -> Mapping[str, list[T]]:
    found: dict[str, list[T]] = defaultdict(list)
    for row in rows:
        found[month_of(row)].append(row)
    return found


def _month(
    month: str,
    tries: Iterable[JobMonth],
    devices: Sequence[DeviceTotals],
    nodes: tuple[float | None, float | None],
    settings: EacoSettings,
) -> MonthSums:
    finished: list[float | None] = []
    failed: list[float | None] = []
    still_open: list[float | None] = []
    for one in tries:
        phase = None if one.record is None else one.record.phase
        # Of a try whose row was cleaned away nobody knows how it ended; only ended ones are cleaned.
        into = still_open if phase in _OPEN else failed if _is_failed(one.record) else finished
        into.extend(one.parts_j)
    finished_j, failed_j, open_j = (_sum(parts) or 0.0 for parts in (finished, failed, still_open))
    devices_j = _sum(each.energy_j for each in devices)
    runs_j = _sum(each.runs_j for each in devices)
    beyond_j = None if runs_j is None else runs_j - math.fsum((finished_j, failed_j, open_j))
    used_j = devices_j if devices_j is not None else _sum([*finished, *failed, *still_open])
    return MonthSums(
        month=month,
        finished_j=finished_j,
        failed_j=failed_j,
        open_j=open_j,
        idle_j=_sum(each.idle_j for each in devices),
        strangers_j=_sum(each.strangers_j for each in devices),
        unmatched_j=None if beyond_j is None else max(0.0, beyond_j),
        excess_j=None if beyond_j is None else max(0.0, -beyond_j),
        devices_j=devices_j,
        unknown_s=math.fsum(each.unknown_s for each in devices),
        node_j=nodes[0],
        node_gpus_j=nodes[1],
        cost=_times(used_j, settings.price_per_kwh),
        co2e_g=_times(used_j, settings.carbon_g_per_kwh),
    )
