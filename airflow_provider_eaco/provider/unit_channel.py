"""Where the units of a training are reported: in a task to Airflow's task state store, elsewhere nowhere."""

from __future__ import annotations

import logging
import os
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NoReturn, Protocol, TypeVar

from airflow_provider_eaco.provider.out_of_memory import MAX_RELAUNCHES, is_out_of_memory
from airflow_provider_eaco.provider.progress_record import (
    ENERGY_KEY,
    INSTRUCTION_KEY,
    PROGRESS_KEY,
    Instruction,
    ProgressRecord,
    UnitReport,
    read_energy,
)

log = logging.getLogger(__name__)

T = TypeVar("T")

TOKEN_VARIABLE = "EACO_LEASE_TOKEN"  # noqa: S105 - the name of a variable that holds a lease number
STORE = "task state store"
DEVICE = "device's meter"
XCOM = "XCom of its energy"
# Under this key a task's XCom has what it has used so far; pushed at most this often, and at the end.
ENERGY_XCOM = "eaco_energy"
ENERGY_INTERVAL_S = 30.0


@dataclass(frozen=True, slots=True)
class StartState:
    """What a run goes on from; nothing done and no checkpoint at the first start."""

    units_done: int = 0
    checkpoint: str | None = None


class UnitChannel(Protocol):
    """Where a run reports to."""

    @property
    def yielded(self) -> bool:
        """Whether the last completed unit ended in a yield."""

    def start(self) -> StartState:
        """Return what to go on from."""

    def begin(self, unit_index: int) -> None:
        """Tell that work on the unit begins."""

    def complete(self, unit_index: int, checkpoint: str | None) -> None:
        """Tell that the unit's work is done; on a simulated node returns when the device agrees."""

    def leave_if_yielded(self) -> None:
        """Leave the process's work, by an exception, if the last completed unit ended in a yield."""

    def leave_if_out_of_memory(self, error: BaseException) -> None:
        """Leave the process's work, by an exception, if the error is one that being alone would cure."""

    def finish(self, units_done: int) -> int:
        """Tell that the training has ended by itself; return how many units were done by all processes."""


class PlainChannel:
    """Outside Airflow: a plain loop that keeps nothing."""

    yielded = False

    def start(self) -> StartState:
        return StartState()

    def begin(self, unit_index: int) -> None:
        """Nobody listens."""

    def complete(self, unit_index: int, checkpoint: str | None) -> None:
        """Nobody listens."""

    def leave_if_yielded(self) -> None:
        """Nobody asks."""

    def leave_if_out_of_memory(self, error: BaseException) -> None:
        """Nobody could start it again."""

    def finish(self, units_done: int) -> int:
        return units_done


class UnitMeter(Protocol):
    """Measures one unit at a time in seconds of the device."""

    def begin_unit(self) -> None: ...

    def wait_unit(self) -> float | None: ...


class WallMeter:
    """A real device: a unit takes what the clock says."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._begun_s = clock()

    def begin_unit(self) -> None:
        self._begun_s = self._clock()

    def wait_unit(self) -> float:
        """Return the seconds since the unit began, at once."""
        return self._clock() - self._begun_s


class TaskState(Protocol):
    """The part of Airflow's accessor of the task state store that is used here."""

    def get(self, key: str) -> Any: ...

    def set(self, key: str, value: Any) -> None: ...


class TaskChannel:
    """The process that holds the task context: keeps the progress record and hears the executor.

    ``first_try_number`` is the number of the first try since the task was last cleared, ``push`` writes an
    XCom. A store or device that fails is logged once; the training goes on without it.
    """

    def __init__(
        self,
        store: TaskState,
        meter: UnitMeter,
        record: ProgressRecord,
        *,
        first_try_number: int,
        identity: str,
        push: Callable[[str, Any], object] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.identity = identity
        self.record = record
        self.yielded = False
        self._store = store
        self._meter = meter
        self._first_try_number = first_try_number
        self._instruction = Instruction()
        self._unsaved = True
        self._warned: set[str] = set()
        self._child_met_it = False
        self._push = push
        self._clock = clock
        self._pushed_at_s = clock()

    @classmethod
    def of_current_task(cls, unit: str, units_total: int | None) -> TaskChannel | None:
        """Return the channel of the Airflow task that this process runs, or ``None`` outside a task."""
        # Whoever runs a task has loaded the task SDK; without it there is no need to load it either.
        if "airflow.sdk" not in sys.modules:
            return None
        from airflow.sdk import get_current_context

        try:
            context: Mapping[str, Any] = get_current_context()
        except RuntimeError:
            return None
        ti = context["ti"]
        token = os.environ.get(TOKEN_VARIABLE, "")
        record = ProgressRecord(
            try_number=ti.try_number,
            token=int(token) if token.isdecimal() else None,
            unit=unit,
            units_total=units_total,
        )
        # Airflow raises max_tries by the tries already used whenever it clears a task, and only then.
        first_try_number = ti.max_tries - (context["task"].retries or 0) + 1
        return cls(
            context["task_state_store"],
            _meter_of(os.environ),
            record,
            first_try_number=first_try_number,
            identity=f"{ti.id}:{ti.try_number}",
            push=getattr(ti, "xcom_push", None),
        )

    def start(self) -> StartState:
        stored = self._guarded(STORE, lambda: (self._store.get(PROGRESS_KEY),))
        if stored is not None:
            self.record.resume_from(stored[0], self._first_try_number)
            # The first record tells unit, total and checkpoint before any unit is done. After a failed read
            # it would overwrite a checkpoint that nobody has seen.
            self._save()
        self._instruction = self._read_instruction()
        return StartState(self.record.units_done, self.record.checkpoint)

    def begin(self, unit_index: int) -> None:
        self._guarded(DEVICE, self._meter.begin_unit)

    def complete(self, unit_index: int, checkpoint: str | None) -> None:
        elapsed_s = self._guarded(DEVICE, self._meter.wait_unit)
        before = self._instruction
        self._instruction = self._read_instruction()
        report = None
        if elapsed_s is not None:
            report = UnitReport(unit_index, elapsed_s, before.set_version, self._instruction.set_version)
        self.record.complete(report, checkpoint)
        self._unsaved = True
        saved = self._save()
        self._push_energy(ENERGY_INTERVAL_S)
        ended = self.record.units_total is not None and self.record.units_done >= self.record.units_total
        # Without a checkpoint of this very unit in the store, leaving would lose work.
        self.yielded = self._instruction.yield_asked and checkpoint is not None and saved and not ended

    def note_out_of_memory(self) -> None:
        """Note that a child process has met it: what this one meets then is the consequence."""
        self._child_met_it = True

    def leave_if_out_of_memory(self, error: BaseException) -> None:
        """Leave the task by reschedule if a shared GPU's memory did not suffice: it comes back to run alone,
        from its last checkpoint, with the same try number; at most :data:`MAX_RELAUNCHES` times in one try.

        :raises AirflowRescheduleException: Airflow queues the same try again at once.
        """
        if not self._child_met_it and not is_out_of_memory(error):
            return
        self._instruction = self._read_instruction()
        is_alone = (self._instruction.residents or 1) < 2
        if is_alone or self.record.out_of_memory >= MAX_RELAUNCHES:
            return
        self.record.out_of_memory += 1
        if not self._save():
            # Nobody would know that it has to run alone.
            return
        log.warning("The memory of shared GPUs did not suffice; the task leaves and runs alone: %s", error)
        _reschedule()

    def leave_if_yielded(self) -> None:
        """Leave the task by reschedule if asked to.

        :raises AirflowRescheduleException: Airflow queues the same try again at once.
        """
        if not self.yielded:
            return
        log.info("Giving the GPUs up after %s %d: asked to", self.record.unit, self.record.units_done)
        _reschedule()

    def finish(self, units_done: int) -> int:
        if self.record.units_done != self.record.units_total:
            # Ended early by itself: nobody could tell that from a run that was cut short.
            self.record.ended, self._unsaved = True, True
        if self._unsaved:
            self._save()
        self._push_energy(0.0)
        return self.record.units_done

    def _read_instruction(self) -> Instruction:
        stored = self._guarded(STORE, lambda: self._store.get(INSTRUCTION_KEY))
        return Instruction.read(stored, self.record.token)

    def _push_energy(self, interval_s: float) -> None:
        """Push what the executor last said that this task has used, unless it was pushed a moment ago."""
        push = self._push
        if push is None or self.record.token is None or self._clock() - self._pushed_at_s < interval_s:
            return
        self._pushed_at_s = self._clock()
        stored = self._guarded(STORE, lambda: self._store.get(ENERGY_KEY))
        record = read_energy(stored, self.record.token)
        if record is not None:
            self._guarded(XCOM, lambda: push(ENERGY_XCOM, {**record, "final": False}))

    def _save(self) -> bool:
        def write() -> bool:
            self._store.set(PROGRESS_KEY, self.record.as_json())
            return True

        saved = self._guarded(STORE, write) is True
        self._unsaved = not saved
        return saved

    def _guarded(self, what: str, call: Callable[[], T]) -> T | None:
        try:
            return call()
        except Exception as error:  # noqa: BLE001 - whatever fails there, a training of days must not die of it
            if what not in self._warned:
                self._warned.add(what)
                log.warning("The training goes on without the %s: %s: %s", what, type(error).__name__, error)
            return None


def _reschedule() -> NoReturn:
    from datetime import UTC, datetime

    from airflow.sdk.exceptions import AirflowRescheduleException

    raise AirflowRescheduleException(datetime.now(tz=UTC))  # type: ignore[no-untyped-call]  # Airflow's own


def _meter_of(environ: Mapping[str, str]) -> UnitMeter:
    from airflow_provider_eaco.telemetry.simulated_device import SimulatedDevice

    try:
        return SimulatedDevice.from_environment(environ) or WallMeter()
    except ValueError as error:
        log.warning("Units are measured by the clock: %s", error)
        return WallMeter()
