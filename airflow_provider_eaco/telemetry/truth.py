"""What families really need and draw on simulated nodes. Never what is believed about them.

Rows of ``[eaco] simulated_truth`` come first, then the measured sets of the EaCO paper (arXiv 2412.08294,
tables 1 to 4), then a rule:

- A set draws the larger of its members' largest solo draw and ``392 + 158.5 * sqrt(min(100, sum U))`` W for
  eight V100 (U: mean solo GPU utilisation in percent).
- Two, three and four members keep 1/1.035, 1/1.083 and 1/1.245 of their speed, the mean of the measured sets
  of that size, times ``100 / sum U`` where the sum is above 100 %. Beyond four we assume in proportion.
- A measured family on another number of GPUs or another model keeps its unit time, and draws as
  :mod:`.gpu_models` says: both are assumptions.
- A family of which nothing is known takes 600 s a unit at 40 % utilisation: assumptions that let any DAG run.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from airflow_provider_eaco.core.model.errors import InvalidSettingError
from airflow_provider_eaco.core.model.profile import FamilySet, ProfileBook, family_set
from airflow_provider_eaco.telemetry.gpu_models import (
    GPU_MODELS,
    V100_NODE_GPUS,
    V100_NODE_IDLE_W,
    V100_NODE_ROOT_W,
)

UNKNOWN_UNIT_S = 600.0
UNKNOWN_UTILISATION_PCT = 40.0

_SETTING = "[eaco] simulated_truth"
_COLUMNS = (
    "families",
    "gpu_model",
    "gpu_count",
    "unit_s",
    "slowdowns",
    "power_w",
    "utilisation_pct",
    "memory_mib",
)
_MEASURED_MODEL = "V100"
_SLOWDOWN_OF_SIZE = {1: 1.0, 2: 1.035, 3: 1.083, 4: 1.245}


@dataclass(frozen=True, slots=True)
class MemberTruth:
    """One member of a set: solo seconds of a unit, solo utilisation, memory per GPU (``None``: unknown), and
    its progress per second in the set against running alone.
    """

    unit_s: float
    utilisation_pct: float
    memory_mib: int | None
    rate: float


@dataclass(frozen=True, slots=True)
class SetTruth:
    """A set of families on the same GPUs; ``power_w`` is the draw of all of them with their host's share."""

    members: tuple[MemberTruth, ...]
    power_w: float
    utilisation_pct: float


@dataclass(frozen=True, slots=True)
class TruthRow:
    """One configured row. A model or count of ``None`` matches any, another ``None`` leaves the value to the
    table or the rule.
    """

    families: FamilySet
    gpu_model: str | None = None
    gpu_count: int | None = None
    unit_s: float | None = None
    slowdowns: Mapping[str, float] = field(default_factory=dict)
    power_w: float | None = None
    utilisation_pct: float | None = None
    memory_mib: int | None = None

    def covers(self, families: FamilySet, gpu_model: str, gpu_count: int) -> bool:
        return (
            self.families == families
            and self.gpu_model in {None, gpu_model}
            and self.gpu_count in {None, gpu_count}
        )


@dataclass(frozen=True, slots=True)
class _Solo:
    unit_s: float
    utilisation_pct: float
    power_w: float
    memory_mib: int | None


class TruthTable:
    """The truth about any set of families, from configured rows, a measured book and the rule."""

    def __init__(self, book: ProfileBook, rows: Sequence[TruthRow] = ()) -> None:
        self._book = book
        self._rows = tuple(rows)

    def of(self, families: tuple[str, ...], gpu_model: str, gpu_count: int) -> SetTruth:
        """Return the truth of these families together, members in the order given.

        :raises KeyError: if the GPU model is none of :data:`GPU_MODELS`.
        """
        solos = [self._solo(family, gpu_model, gpu_count) for family in families]
        if len(families) == 1:
            return _set_truth(solos, [1.0], solos[0].power_w, solos[0].utilisation_pct)
        members = family_set(families)
        sum_pct = math.fsum(solo.utilisation_pct for solo in solos)
        row = self._row(members, gpu_model, gpu_count)
        measured = self._book.coallocation_of(members, _MEASURED_MODEL, V100_NODE_GPUS)
        if row is not None and row.slowdowns:
            rates = [1.0 / row.slowdowns[family] for family in families]
        elif measured is not None:
            rates = [1.0 / measured.slowdowns[family] for family in families]
        else:
            rates = [rule_rate(len(families), sum_pct)] * len(families)
        power_w, utilisation_pct = _rule_power_w(solos, gpu_model, gpu_count), min(100.0, sum_pct)
        if measured is not None:
            if measured.power_w is not None:
                power_w = GPU_MODELS[gpu_model].draw_w(measured.power_w, gpu_count)
            utilisation_pct = _known(measured.utilisation_pct, utilisation_pct)
        if row is not None:
            power_w = _known(row.power_w, power_w)
            utilisation_pct = _known(row.utilisation_pct, utilisation_pct)
        return _set_truth(solos, rates, power_w, utilisation_pct)

    def _row(self, families: FamilySet, gpu_model: str, gpu_count: int) -> TruthRow | None:
        return next((row for row in self._rows if row.covers(families, gpu_model, gpu_count)), None)

    def _solo(self, family: str, gpu_model: str, gpu_count: int) -> _Solo:
        model = GPU_MODELS[gpu_model]
        unit_s, utilisation_pct, memory_mib = UNKNOWN_UNIT_S, UNKNOWN_UTILISATION_PCT, None
        v100_w: float | None = None
        profile = self._book.solo_of(family, _MEASURED_MODEL, V100_NODE_GPUS)
        if profile is not None:
            unit_s = _known(profile.unit_s, unit_s)
            utilisation_pct = _known(profile.utilisation_pct, utilisation_pct)
            v100_w, memory_mib = profile.power_w, profile.memory_peak_mib
        row = self._row(family_set((family,)), gpu_model, gpu_count)
        if row is not None:
            unit_s = _known(row.unit_s, unit_s)
            memory_mib = memory_mib if row.memory_mib is None else row.memory_mib
            if row.utilisation_pct is not None:
                utilisation_pct, v100_w = row.utilisation_pct, None
        power_w = model.draw_w(v100_power_w(utilisation_pct) if v100_w is None else v100_w, gpu_count)
        if row is not None:
            power_w = _known(row.power_w, power_w)
        return _Solo(unit_s, utilisation_pct, power_w, memory_mib)


def v100_power_w(utilisation_pct: float) -> float:
    """Return the fitted draw of a node of eight V100 at this mean GPU utilisation."""
    return V100_NODE_IDLE_W + V100_NODE_ROOT_W * math.sqrt(min(100.0, utilisation_pct))


def rule_rate(members: int, sum_pct: float) -> float:
    """Return the progress rate of every member of a set that was never measured."""
    largest = max(_SLOWDOWN_OF_SIZE)
    slowdown = _SLOWDOWN_OF_SIZE.get(members, _SLOWDOWN_OF_SIZE[largest] * members / largest)
    return min(1.0, 100.0 / sum_pct) / slowdown if sum_pct > 0 else 1.0 / slowdown


def parse_truth(rows: Iterable[Mapping[str, Any]]) -> tuple[TruthRow, ...]:
    """Return the rows of ``[eaco] simulated_truth`` (parsed JSON), checked.

    :raises InvalidSettingError: naming the row and what is allowed.
    """
    return tuple(_parse_row(number, row) for number, row in enumerate(rows, 1))


def _parse_row(number: int, row: Mapping[str, Any]) -> TruthRow:
    unknown = sorted(set(row) - set(_COLUMNS))
    if unknown:
        raise _error(number, f"unknown {', '.join(unknown)}; allowed are {', '.join(_COLUMNS)}")
    names = row.get("families")
    if not isinstance(names, list) or not names or not all(isinstance(name, str) and name for name in names):
        raise _error(number, f"families is {names!r}, must be a list of names")
    model = row.get("gpu_model")
    if model is not None and model not in GPU_MODELS:
        raise _error(number, f"gpu_model is {model!r}, must be one of {', '.join(GPU_MODELS)}")
    count, memory_mib = _positive_whole(number, row, "gpu_count"), _positive_whole(number, row, "memory_mib")
    power_w, utilisation_pct = _positive(number, row, "power_w"), _positive(number, row, "utilisation_pct")
    if utilisation_pct is not None and utilisation_pct > 100:
        raise _error(number, f"utilisation_pct is {utilisation_pct!r}, must be at most 100")
    if power_w is not None and (count is None or model is None):
        raise _error(
            number, "power_w needs gpu_model and gpu_count: it is the draw of that many GPUs together"
        )
    unit_s = _positive(number, row, "unit_s")
    if unit_s is not None and len(names) > 1:
        raise _error(number, "unit_s belongs to a row with one family; a set has slowdowns")
    return TruthRow(
        families=family_set(names),
        gpu_model=model,
        gpu_count=count,
        unit_s=unit_s,
        slowdowns=_slowdowns(number, row, names),
        power_w=power_w,
        utilisation_pct=utilisation_pct,
        memory_mib=memory_mib,
    )


def _slowdowns(number: int, row: Mapping[str, Any], names: list[str]) -> dict[str, float]:
    values = row.get("slowdowns")
    if values is None:
        return {}
    if len(names) < 2 or not isinstance(values, list) or len(values) != len(names):
        raise _error(number, "slowdowns must be a list with one number per family, for two or more families")
    slowdowns: dict[str, float] = {}
    for name, value in zip(names, values, strict=True):
        slowdown = _positive_number(number, "slowdowns", value)
        if slowdowns.setdefault(name, slowdown) != slowdown:
            raise _error(number, f"slowdowns has two values for {name!r}, must be equal")
    return slowdowns


def _positive(number: int, row: Mapping[str, Any], name: str) -> float | None:
    value = row.get(name)
    return None if value is None else _positive_number(number, name, value)


def _positive_whole(number: int, row: Mapping[str, Any], name: str) -> int | None:
    value = row.get(name)
    if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
        raise _error(number, f"{name} is {value!r}, must be a whole number above 0")
    return value


def _positive_number(number: int, name: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
        raise _error(number, f"{name} has {value!r}, must be a finite number above 0")
    return float(value)


def _error(number: int, problem: str) -> InvalidSettingError:
    return InvalidSettingError(_SETTING, f"row {number}: {problem}")


def _known(value: float | None, otherwise: float) -> float:
    return otherwise if value is None else value


def _rule_power_w(solos: Sequence[_Solo], gpu_model: str, gpu_count: int) -> float:
    sum_pct = math.fsum(solo.utilisation_pct for solo in solos)
    together_w = GPU_MODELS[gpu_model].draw_w(v100_power_w(sum_pct), gpu_count)
    return max(together_w, *(solo.power_w for solo in solos))


def _set_truth(
    solos: Sequence[_Solo], rates: Sequence[float], power_w: float, utilisation_pct: float
) -> SetTruth:
    members = tuple(
        MemberTruth(solo.unit_s, solo.utilisation_pct, solo.memory_mib, rate)
        for solo, rate in zip(solos, rates, strict=True)
    )
    return SetTruth(members, power_w, utilisation_pct)
