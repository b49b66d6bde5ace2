"""Virtual time: seconds from the first submission, in whole milliseconds, moved only by the runner."""

from __future__ import annotations


def instant(seconds: float) -> float:
    """Return the instant on the millisecond grid of the simulation.

    The files of a run have millisecond precision; on this grid what is written is what was simulated.
    """
    return round(seconds, 3)


class VirtualClock:
    """The port :class:`~airflow_provider_eaco.core.ports.Clock` on virtual time."""

    def __init__(self) -> None:
        self._now_s = 0.0

    def now_s(self) -> float:
        return self._now_s

    def move_to(self, now_s: float) -> None:
        """Move time forward.

        :raises ValueError: if ``now_s`` lies in the past.
        """
        if now_s < self._now_s:
            raise ValueError(f"now_s: {now_s} is before the present instant {self._now_s}")
        self._now_s = now_s
