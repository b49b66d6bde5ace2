"""What runs on a node have used, kept there in all, so that a report that is told again adds nothing."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection
from dataclasses import replace

from airflow_provider_eaco.core.energy.accounting import RunKey
from airflow_provider_eaco.core.energy.records import JobEnergy, MachineEnergy, RunNote
from airflow_provider_eaco.core.model.placement import Placement
from airflow_provider_eaco.core.ports import EnergyMethod, EnergyPart
from airflow_provider_eaco.provider.services import NodeMeter

log = logging.getLogger(__name__)

# How long the energy of a run that has left is told on: its last second is measured after its end.
_LEFT_KEPT_S = 120.0

# A sum is as certain as its least certain part.
_LEAST_CERTAIN_FIRST = (
    EnergyMethod.INTEGRATED,
    EnergyMethod.DIVIDED,
    EnergyMethod.MODEL,
    EnergyMethod.COUNTER,
    EnergyMethod.UNKNOWN,
)


class UseOfRuns:
    """What the runs of a machine with a worker use of it, as its meter sees it."""

    def __init__(self, meter: NodeMeter, monotonic: Callable[[], float]) -> None:
        self._meter = meter
        self._monotonic = monotonic
        self._left_s: dict[int, float] = {}
        self.energy = ReportedEnergy()

    def measure(self, living: Collection[RunKey], *, at_once: bool = False) -> None:
        """Take in what these runs and the machine have used up to now, as far as the meter tells it now and
        then; all that it knows if ``at_once``.
        """
        if self._meter.live is None:
            return
        try:
            self._meter.live.write_interim(living, self.energy, at_once=at_once)
        except Exception:
            log.exception("What runs have used is not known now")

    def close(self, run: RunKey) -> None:
        """Take in all that is known now of a run that has left."""
        job_id, token = run
        self._left_s[token] = self._monotonic()
        if self._meter.energy is None:
            return
        try:
            self._meter.energy.write_energy(job_id, token, self.energy)
        except Exception:
            log.exception("What a run has used is not known now: job_id=%s token=%s", job_id, token)

    def note_unmeasured(self, run: RunKey, placement: Placement) -> None:
        """Note that nobody measured a part of the run: what is told of it, and was, is a lower bound."""
        job_id, token = run
        for uuid in placement.gpu_uuids:
            self.energy.add(EnergyPart(job_id, token, uuid, None, 0.0, EnergyMethod.UNKNOWN, partial=True))

    def peaks_mib(self, living: Collection[RunKey]) -> tuple[tuple[int, int], ...]:
        """Return the most memory that each of these runs was seen to use, as far as it is known."""
        meters = self._meter.runs
        if meters is None:
            return ()
        seen = ((token, meters.run_meter(job_id, token)) for job_id, token in sorted(living))
        return tuple(
            (token, meter.memory_peak_mib)
            for token, meter in seen
            if meter is not None and meter.memory_peak_mib is not None
        )

    def keep(self, living: Collection[int]) -> None:
        """Forget runs that have left and whose last second has been told, too."""
        now_s = self._monotonic()
        self._left_s = {token: at_s for token, at_s in self._left_s.items() if now_s - at_s <= _LEFT_KEPT_S}
        self.energy.keep({*living, *self._left_s})


class ReportedEnergy:
    """An energy log in memory. What an earlier worker measured of a run is stored; this one begins at 0."""

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
