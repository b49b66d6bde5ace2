"""``training_run``: the loop of a training, told to the executor unit by unit and able to give way.

Loaded by training code, so it imports nothing of Airflow unless Airflow is what runs it. Where the units go
is a :class:`~airflow_provider_eaco.provider.unit_channel.UnitChannel`: Airflow's task state store in the
process that holds the task, that process's socket in its children, and nowhere outside Airflow.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from types import TracebackType
from typing import Any, Self

from airflow_provider_eaco.core.model.errors import shown
from airflow_provider_eaco.provider.out_of_memory import is_out_of_memory
from airflow_provider_eaco.provider.report_socket import SOCKET_VARIABLE, ReportServer, SocketChannel
from airflow_provider_eaco.provider.unit_channel import PlainChannel, TaskChannel, UnitChannel

log = logging.getLogger(__name__)

# Above it, JSON and floats no longer tell neighbouring whole numbers apart.
_MAX_UNITS = 2**53

# Processes with an open run of a task, and task tries whose run ended here. A fork has an id of its own.
_open_in: set[int] = set()
_begun_in: set[int] = set()
_ended: set[tuple[int, str]] = set()


def training_run(epochs: int | None = None, *, unit: str = "epoch") -> TrainingRun:
    """Return the run of this task's training, to be used in a ``with`` statement.

    In a task that EacoExecutor runs, epochs are reported, co-allocations are judged by them, and the task may
    be asked to give its GPUs up after :meth:`TrainingRun.report` with a checkpoint. A retry goes on from the
    last checkpoint; a cleared task starts from nothing. Outside Airflow it is a plain loop.

    :param epochs: how many units the training has in all; ``None`` if nobody knows, then it goes on until the
        loop is left.
    :param unit: what is counted: ``epoch``, or for example ``step``, ``tree`` or ``minute``. One report
        costs about 0.1 s in a task: choose units of seconds or more.
    :raises ValueError: if ``epochs`` is not a whole number from 1 to 2**53.
    """
    if epochs is not None and (
        isinstance(epochs, bool) or not isinstance(epochs, int) or not 1 <= epochs <= _MAX_UNITS
    ):
        raise ValueError(f"epochs: {shown(epochs)} must be a whole number from 1 to 2**53, or None")
    if not isinstance(unit, str) or not unit.strip():
        raise ValueError(f"unit: {shown(unit)} must be the name of what is counted, such as 'epoch'")
    return TrainingRun(epochs, unit.strip())


def leave_if_out_of_memory(error: BaseException) -> None:
    """Let a task without a training run leave, and come back alone, if a shared GPU's memory did not suffice.

    :raises AirflowRescheduleException: Airflow queues the same try again at once.
    """
    # A training run has seen the error itself, and keeps the record that a second one would overwrite.
    if os.getpid() in _begun_in or not is_out_of_memory(error):
        return
    channel = TaskChannel.of_current_task("task", 1)
    if channel is not None:
        channel.start()
        channel.leave_if_out_of_memory(error)


class TrainingRun:
    """One training from its start or checkpoint to its end; see :func:`training_run`."""

    def __init__(self, units_total: int | None, unit: str) -> None:
        self._units_total = units_total
        self._unit = unit
        self._channel: UnitChannel = PlainChannel()
        self._server: ReportServer | None = None
        self._begun = False
        #: Where the state to go on from was saved; ``None`` at the first try.
        self.checkpoint: str | None = None
        #: How many units are done, those of earlier starts included.
        self.units_done = 0
        #: The metrics of the last report.
        self.metrics: dict[str, Any] = {}

    def __enter__(self) -> Self:
        if os.getpid() in _open_in:
            raise RuntimeError("a training_run is open in this process already; one cannot hold another")
        self._channel = _find_channel(self._unit, self._units_total)
        if isinstance(self._channel, TaskChannel) and (os.getpid(), self._channel.identity) in _ended:
            raise RuntimeError(
                "this task already had a training_run; put the second training into its own task"
            )
        state = self._channel.start()
        self.units_done, self.checkpoint = state.units_done, state.checkpoint
        if isinstance(self._channel, TaskChannel):
            _open_in.add(os.getpid())
            _begun_in.add(os.getpid())
            self._server = ReportServer.open(self._channel)
        if self.units_done:
            log.info("Going on after %s %d from %s", self._unit, self.units_done, self.checkpoint)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _open_in.discard(os.getpid())
        if self._server is not None:
            self._server.close()
        if kind is None or issubclass(kind, Exception):
            # A child process gave way: what its parent met since then is only the consequence.
            self._channel.leave_if_yielded()
        if isinstance(error, Exception):
            self._channel.leave_if_out_of_memory(error)
        if kind is None:
            self.units_done = self._channel.finish(self.units_done)
            if isinstance(self._channel, TaskChannel):
                _ended.add((os.getpid(), self._channel.identity))

    @property
    def units_total(self) -> int | None:
        """How many units the training has in all; ``None`` if nobody knows."""
        return self._units_total

    def epochs(self) -> Iterator[int]:
        """Yield the index of each unit that is still to be done, from where the last start stopped.

        A unit that the loop's body did not report is reported when the next one is asked for.
        """
        while self._units_total is None or self.units_done < self._units_total:
            index = self.units_done
            self.begin_unit()
            yield index
            if self.units_done == index:
                self.report()

    units = epochs

    def report(
        self, *, loss: float | None = None, checkpoint: str | os.PathLike[str] | None = None, **metrics: Any
    ) -> None:
        """Tell that the present unit is done; call it last in the loop's body.

        On a simulated node it returns when the device has done the unit's work, on a real one at once. If the
        executor asks for the GPUs and a checkpoint is given, it does not return: the task leaves by
        reschedule and comes back with the same try number.

        :param loss: shown in the task's log, like every other metric.
        :param checkpoint: where the state after this unit **has been saved**, readable wherever the task may
            run next.
        """
        self.finish_unit(loss=loss, checkpoint=checkpoint, **metrics)
        self.leave_if_yielded()

    def finish_unit(
        self, *, loss: float | None = None, checkpoint: str | os.PathLike[str] | None = None, **metrics: Any
    ) -> bool:
        """Tell that the present unit is done, as :meth:`report` does, and return where that would leave.

        For a framework that has a loop of its own: where it returns true the loop is to be stopped, and the
        task leaves at :meth:`leave_if_yielded`, at the latest when the ``with`` block ends.
        """
        self.metrics = {**({} if loss is None else {"loss": loss}), **metrics}
        self.begin_unit()
        self._begun = False
        self.units_done += 1
        saved = None if checkpoint is None else os.fsdecode(checkpoint)
        if saved is not None:
            self.checkpoint = saved
        total = "?" if self._units_total is None else self._units_total
        told = ", ".join(f"{name}={_shown(value)}" for name, value in self.metrics.items())
        log.info("%s %d/%s done%s", self._unit, self.units_done, total, f": {told}" if told else "")
        self._channel.complete(self.units_done - 1, saved)
        return self._channel.yielded

    def leave_if_yielded(self) -> None:
        """Leave the task if its last unit ended in a yield; otherwise do nothing.

        :raises AirflowRescheduleException: in the task's own process: Airflow queues the same try again.
        :raises SystemExit: with code 0, in a process that the task started.
        """
        self._channel.leave_if_yielded()

    def begin_unit(self) -> None:
        """Tell that work on the next unit begins; :meth:`epochs` does it by itself.

        A framework with a loop of its own calls it where a unit starts: a unit's time counts from here.
        """
        if not self._begun:
            self._begun = True
            self._channel.begin(self.units_done)


def _find_channel(unit: str, units_total: int | None) -> UnitChannel:
    address = os.environ.get(SOCKET_VARIABLE)
    if address:
        channel = SocketChannel.connect(address, unit, units_total)
        if channel is not None:
            return channel
    return TaskChannel.of_current_task(unit, units_total) or PlainChannel()


def _shown(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
