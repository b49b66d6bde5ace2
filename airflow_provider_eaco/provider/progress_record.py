"""The values that a task and the executor exchange through Airflow's task state store (decision 3).

A task writes :class:`ProgressRecord` at unit boundaries and reads :class:`Instruction` and what it has used
so far. Reading is lenient: whatever cannot be understood counts as absent, since a training must not die of a
broken value.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

PROGRESS_KEY = "eaco/progress"
INSTRUCTION_KEY = "eaco/instruction"
ENERGY_KEY = "eaco/energy"
VERSION = 1
MAX_RECENT = 32


@dataclass(frozen=True, slots=True)
class UnitReport:
    """One finished unit: its device time, and the set's version when it began and ended, if known."""

    unit_index: int
    elapsed_s: float
    version_at_begin: int | None
    version_at_end: int | None


@dataclass(frozen=True, slots=True)
class Instruction:
    """What the executor last said to the holder of a lease; ``None``: nothing."""

    set_version: int | None = None
    yield_asked: bool = False
    residents: int | None = None

    @classmethod
    def read(cls, value: object, token: int | None) -> Instruction:
        """Return what ``value`` says to the holder of lease ``token``; nothing if it means another."""
        if not isinstance(value, Mapping) or token is None or value.get("token") != token:
            return cls()
        version, residents = value.get("set_version"), value.get("residents")
        return cls(
            version if isinstance(version, int) else None,
            value.get("yield") is True,
            residents if isinstance(residents, int) else None,
        )


def read_energy(value: object, token: int | None) -> dict[str, Any] | None:
    """Return the energy record that ``value`` tells the holder of lease ``token``, ``None`` if it is none."""
    if not isinstance(value, Mapping) or token is None or value.get("token") != token:
        return None
    record = value.get("record")
    return dict(record) if isinstance(record, Mapping) else None


@dataclass(slots=True)
class ProgressRecord:
    """How far a run has come, as it stands in the store.

    ``checkpoint`` is where the state after ``checkpoint_units`` units was saved; ``units_done`` may be ahead
    of it, when not every unit saves one. ``ended``: the training has ended by itself with
    fewer units than announced, or without an announcement. ``out_of_memory`` counts how often it left because
    the memory of shared GPUs did not suffice.
    """

    try_number: int
    token: int | None
    unit: str
    units_total: int | None
    units_done: int = 0
    checkpoint: str | None = None
    checkpoint_units: int = 0
    can_yield: bool = False
    ended: bool = False
    recent: list[UnitReport] = field(default_factory=list)
    out_of_memory: int = 0

    def complete(self, report: UnitReport | None, checkpoint: str | None) -> None:
        """Count one more unit; ``report`` is ``None`` where its time could not be measured."""
        self.units_done += 1
        if report is not None:
            self.recent = [*self.recent, report][-MAX_RECENT:]
        if checkpoint is not None:
            self.checkpoint = checkpoint
            self.checkpoint_units = self.units_done
            self.can_yield = True

    def resume_from(self, stored: object, first_try_number: int) -> None:
        """Take over the checkpoint of an earlier start of the same run.

        :param stored: the value found in the store.
        :param first_try_number: number of the first try since the task was last cleared; what an older try
            left belongs to another run, which a cleared task does not continue.
        """
        if not isinstance(stored, Mapping) or stored.get("v") != VERSION:
            return
        number, checkpoint = stored.get("try_number"), stored.get("checkpoint")
        if not isinstance(number, int) or not first_try_number <= number <= self.try_number:
            return
        count = stored.get("out_of_memory")
        if number == self.try_number and isinstance(count, int) and count > 0:
            self.out_of_memory = count
        if not isinstance(checkpoint, str):
            return
        done = stored.get("checkpoint_units", stored.get("units_done"))
        if isinstance(done, int) and done > 0 and stored.get("unit") == self.unit:
            self.units_done = self.checkpoint_units = done
            self.checkpoint = checkpoint
            self.can_yield = True

    def as_json(self) -> dict[str, Any]:
        """Return the value for the store."""
        return {
            "v": VERSION,
            "try_number": self.try_number,
            "token": self.token,
            "unit": self.unit,
            "units_done": self.units_done,
            "units_total": self.units_total,
            "checkpoint": self.checkpoint,
            "checkpoint_units": self.checkpoint_units,
            "can_yield": self.can_yield,
            "ended": self.ended,
            "out_of_memory": self.out_of_memory,
            "recent": [
                [each.unit_index, each.elapsed_s, each.version_at_begin, each.version_at_end]
                for each in self.recent
            ],
        }
