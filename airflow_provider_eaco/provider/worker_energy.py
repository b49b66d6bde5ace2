"""What runs on a node have used, kept there in all, so that a report that is told again adds nothing."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from airflow_provider_eaco.core.energy.records import JobEnergy, MachineEnergy, RunNote
from airflow_provider_eaco.core.ports import EnergyMethod, EnergyPart

# A sum is as certain as its least certain part.
_LEAST_CERTAIN_FIRST = (
    EnergyMethod.INTEGRATED,
    EnergyMethod.DIVIDED,
    EnergyMethod.MODEL,
    EnergyMethod.COUNTER,
    EnergyMethod.UNKNOWN,
)


class ReportedEnergy:
    """An energy log in memory. What an earlier worker measured of a run is stored; this one begins at 0, and
    its meter marks such a run as partial.
    """

    def __init__(self) -> None:
        self._totals: dict[tuple[int, str], EnergyPart] = {}
        self._notes: dict[int, RunNote] = {}
        self.counters: MachineEnergy | None = None

    def add(self, part: EnergyPart) -> None:
        """Add the part to what is kept for its token and GPU."""
        key = part.token, part.gpu_uuid
        known = self._totals.get(key)
        self._totals[key] = part if known is None else _sum(known, part)

    def bring_to(self, part: EnergyPart) -> None:
        """Keep this part in place of what was kept for its token and GPU."""
        self._totals[part.token, part.gpu_uuid] = part

    def note_run(self, note: RunNote) -> None:
        """Keep the note in place of the last one of its run."""
        self._notes[note.token] = note

    def add_machine(self, counters: MachineEnergy) -> bool:
        """Keep the counters; whether they count is decided where they are stored."""
        self.counters = counters
        return True

    def job_energy(self, job_id: str) -> JobEnergy | None:
        """Return ``None``: records are kept in the store."""

    def totals(self) -> tuple[EnergyPart, ...]:
        """Return what each run has used on each GPU."""
        return tuple(self._totals.values())

    def notes(self) -> tuple[RunNote, ...]:
        """Return the notes of runs."""
        return tuple(self._notes.values())

    def keep(self, tokens: Collection[int]) -> None:
        """Forget all other runs."""
        self._totals = {key: part for key, part in self._totals.items() if key[0] in tokens}
        self._notes = {token: note for token, note in self._notes.items() if token in tokens}


def _sum(known: EnergyPart, more: EnergyPart) -> EnergyPart:
    amounts = [each.energy_j for each in (known, more) if each.energy_j is not None]
    methods = {known.method, more.method} - {EnergyMethod.UNKNOWN}
    return replace(
        known,
        energy_j=sum(amounts) if amounts else None,
        seconds=known.seconds + more.seconds,
        method=next((each for each in _LEAST_CERTAIN_FIRST if each in methods), EnergyMethod.UNKNOWN),
        partial=known.partial or more.partial or len(amounts) < 2,
    )
