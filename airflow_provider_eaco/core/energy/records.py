"""What is kept of energy: the record of one task try, and the sums of one machine by month. Pure.

Joules of a run come part by part (:class:`~.accounting.EnergyPart`); these are the values around them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from datetime import UTC, datetime

from airflow_provider_eaco.core.energy.accounting import DeviceTotals, EnergyMethod, SplitRule


@dataclass(frozen=True, slots=True)
class RunNote:
    """What a meter saw of one run beside its joules: the largest draw of all its GPUs together, ``None`` if
    that is unknown, and the rules by which shared energy was split.
    """

    job_id: str
    token: int
    peak_w: float | None
    rules: frozenset[SplitRule] = frozenset()


@dataclass(frozen=True, slots=True)
class JobEnergy:
    """The energy of one job (one task try) over all its leases.

    ``energy_j`` is ``None`` when nothing was ever measured; ``partial`` when a part is missing, so that the
    sum is a lower bound. ``methods`` are those by which it was found. ``per_gpu_j`` is the same by GPU UUID.
    ``seconds`` are those of its GPUs that were looked at, ``mean_w`` is the draw over those that were
    measured. ``peak_w`` and ``rules`` are as in :class:`RunNote`; ``co_residents`` are the labels of the
    tasks that held the same GPUs at some time.
    """

    energy_j: float | None
    partial: bool
    methods: frozenset[EnergyMethod]
    per_gpu_j: Mapping[str, float | None]
    seconds: float = 0.0
    mean_w: float | None = None
    peak_w: float | None = None
    rules: frozenset[SplitRule] = frozenset()
    co_residents: tuple[str, ...] = ()


@dataclass(slots=True)
class NodeTotals:
    """Joules that a machine's own power meter counted, those of its GPUs in the same time, and that time."""

    node_j: float = 0.0
    gpus_j: float = 0.0
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class MachineEnergy:
    """The counters of one machine's GPUs, as a meter has them since ``began_s``.

    ``origin`` names the counting: two values with one origin are two readings of the same counters, so their
    difference was used in between. Another origin begins at 0. Instants are seconds since the epoch.
    """

    node: str
    origin: str
    began_s: float
    until_s: float
    devices: Mapping[str, DeviceTotals]
    totals: NodeTotals = field(default_factory=NodeTotals)


def month_of(at_s: float) -> str:
    """Return the month of an instant in UTC, as ``2026-12``."""
    return datetime.fromtimestamp(at_s, UTC).strftime("%Y-%m")


def used_since(
    before: DeviceTotals | NodeTotals, after: DeviceTotals | NodeTotals
) -> dict[str, float] | None:
    """Return by field what was counted in between; ``None`` if a counter went back."""
    grown = {each.name: getattr(after, each.name) - getattr(before, each.name) for each in fields(after)}
    # Differences of sums may fall below 0 in their last digits.
    rounding = 1e-9 * max(getattr(after, each.name) for each in fields(after))
    if min(grown.values()) < -rounding:
        return None
    return {name: max(0.0, value) for name, value in grown.items()}
