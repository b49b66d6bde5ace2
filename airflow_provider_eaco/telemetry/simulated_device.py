"""The task's side of a simulated node: do a unit of work on the device model and learn how long it took.

A training loop calls :meth:`SimulatedDevice.begin_unit` when it starts a unit (epoch) and
:meth:`SimulatedDevice.wait_unit` when its own computing for that unit is done. The executor's side, which
says who holds which GPUs, is :mod:`airflow_provider_eaco.telemetry.simulated`.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from airflow_provider_eaco.telemetry.device_model import DeviceModel
from airflow_provider_eaco.telemetry.residents import UnitState
from airflow_provider_eaco.telemetry.state_file import StateBusyError, StateFile

STATE_VARIABLE = "EACO_SIMULATED_STATE"
JOB_VARIABLE = "EACO_JOB_ID"
TOKEN_VARIABLE = "EACO_LEASE_TOKEN"  # noqa: S105 - the name of a variable that holds a lease number

# Wall seconds that a unit may go on while the device model does not know the job: the executor declares it
# within a heartbeat; after this the training goes on unmetered instead of hanging.
PATIENCE_S = 60.0

_SHORTEST_POLL_S = 0.02
_HELD_POLL_S = 0.15
_LONGEST_POLL_S = 1.0

log = logging.getLogger(__name__)


class SimulatedDevice:
    """One job's handle on the device model in the file ``state``. Not for use by several threads.

    Time and waiting are handed in (``clock`` in seconds since the epoch, ``sleep`` in seconds), so that tests
    run on virtual time.
    """

    def __init__(
        self,
        state: Path,
        job_id: str,
        token: int,
        *,
        clock: Callable[[], float] = time.time,
        sleep: Callable[[float], None] = time.sleep,
        patience_s: float = PATIENCE_S,
    ) -> None:
        self._file = StateFile(state)
        self._job_id = job_id
        self._token = token
        self._clock = clock
        self._sleep = sleep
        self._patience_s = patience_s
        self._unit = 0
        self._units = 0.0
        self._warned_unit = 0
        self._model: DeviceModel | None = None
        self._signature: tuple[int, int, int] | None = None
        # What is known of the present unit, for the case that the state file is lost and rebuilt meanwhile.
        self._share_left = 1.0
        self._lost_elapsed_s = 0.0
        self._seen_elapsed_s = 0.0

    @classmethod
    def from_environment(cls, environ: Mapping[str, str]) -> SimulatedDevice | None:
        """Return the device of the job that runs in this environment; ``None`` where it is not simulated.

        :raises ValueError: if the state file is named and the job or its token is not, or is no number.
        """
        state = environ.get(STATE_VARIABLE)
        if not state:
            return None
        job_id, token = environ.get(JOB_VARIABLE), environ.get(TOKEN_VARIABLE, "")
        if not job_id:
            raise ValueError(f"{STATE_VARIABLE} is set and {JOB_VARIABLE} is not")
        if not token.isdecimal():
            raise ValueError(f"{TOKEN_VARIABLE} is {token!r}, must be the number of the lease")
        return cls(Path(state), job_id, int(token))

    def begin_unit(self, units: float = 1.0) -> None:
        """Begin ``units`` units of work; a unit that was begun before and not waited for is forgotten.

        The simulated clock stands still until :meth:`wait_unit` is called, at most for the node's hold limit.

        :raises ValueError: if ``units`` is not above 0.
        """
        if not units > 0:
            raise ValueError(f"units is {units!r}, must be above 0")
        self._unit += 1
        self._units = units
        self._share_left = 1.0
        self._lost_elapsed_s = 0.0
        self._seen_elapsed_s = 0.0
        try:
            with self._file.change(self._clock()) as model:
                if model is not None:
                    self._begin(model)
        except (StateBusyError, OSError) as error:
            self._warn(error)  # wait_unit() begins it then

    def wait_unit(self) -> float | None:
        """Return, once the device has done the unit that was begun, its device time in (simulated) seconds.

        ``None``: the device model did not know the job for the length of the patience, so nothing was
        measured; the training can go on. A job that the executor has not declared yet, a lost state file and
        a restarted executor are waited for.

        :raises RuntimeError: if no unit was begun.
        """
        if not self._units:
            raise RuntimeError("wait_unit() needs a begin_unit() before it")
        unknown_since_s: float | None = None
        while True:
            now_s = self._clock()
            unit = self._look(now_s)
            if unit is None:
                unknown_since_s = now_s if unknown_since_s is None else unknown_since_s
                if now_s - unknown_since_s >= self._patience_s:
                    log.warning(
                        "simulated node does not know the job: job_id=%s token=%s", self._job_id, self._token
                    )
                    self._units = 0.0
                    return None
                self._sleep(_HELD_POLL_S)
                continue
            unknown_since_s = None
            if unit.done:
                self._units = 0.0
                return self._lost_elapsed_s + unit.elapsed_s
            self._sleep(_pause_s(unit))

    def _begin(self, model: DeviceModel) -> None:
        model.begin_unit((self._job_id, self._token), self._unit, self._units, self._share_left)

    def _look(self, now_s: float) -> UnitState | None:
        """Return how far the unit is; takes the lock only where the model has to be told something."""
        unit = self._unit_state(now_s)
        if unit is not None and unit.done:
            # The end of a unit is believed of a fresh look only.
            self._signature = None
            unit = self._unit_state(now_s)
        if unit is not None and (unit.unit != self._unit or not (unit.waiting or unit.done)):
            unit = self._tell(now_s)
        if unit is not None:
            self._share_left, self._seen_elapsed_s = unit.share_left, unit.elapsed_s
        return unit

    def _unit_state(self, now_s: float) -> UnitState | None:
        # Advancing a model further is the same as advancing it from its file, as long as that did not change:
        # a poll then costs next to nothing.
        signature = self._file.signature()
        if signature is None or signature != self._signature:
            self._model, self._signature = self._file.load(), signature
        if self._model is None:
            return None
        self._model.advance(now_s)
        return self._model.unit_state((self._job_id, self._token))

    def _tell(self, now_s: float) -> UnitState | None:
        key = self._job_id, self._token
        try:
            with self._file.change(now_s) as model:
                if model is None:
                    return None
                unit = model.unit_state(key)
                if unit is not None and unit.unit != self._unit:
                    # The state began anew, or the job was declared only after the unit began: what the old
                    # state had done of it stays done.
                    self._lost_elapsed_s += self._seen_elapsed_s
                    self._seen_elapsed_s = 0.0
                    self._begin(model)
                model.wait_unit(key)
                return model.unit_state(key)
        except (StateBusyError, OSError) as error:
            self._warn(error)
            return None

    def _warn(self, error: Exception) -> None:
        # Once per unit: a file that cannot be written would otherwise fill the task's log at every poll.
        if self._warned_unit != self._unit:
            self._warned_unit = self._unit
            log.warning("simulated state cannot be changed now: error=%s", error)


def _pause_s(unit: UnitState) -> float:
    shortest_s = _HELD_POLL_S if unit.held else _SHORTEST_POLL_S
    return min(max(unit.wall_left_s, shortest_s), _LONGEST_POLL_S)
