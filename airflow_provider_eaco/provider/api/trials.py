"""Trials of one stay, from the events of its job. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import BaseModel


class Trial(BaseModel):
    """A part of a span in which the set was on trial. ``end``: confirmed, unconfirmed, undone or open."""

    from_s: float
    until_s: float | None
    end: str


def trials_of(
    events: Sequence[tuple[float, str]], after_s: float, from_s: float, until_s: float | None
) -> list[Trial]:
    """Return the trials of one span, from its job's events in their order.

    An event bears the instant of its decision, which lies a moment before the grant that followed from it:
    those since the job's former span, ``after_s``, are meant. A trial that is still open at the end of the
    span ended with it.
    """
    trials: list[Trial] = []
    begun_s: float | None = None
    for decided_s, event in events:
        if decided_s < after_s or (until_s is not None and decided_s > until_s):
            continue
        at_s = max(decided_s, from_s)
        if event == "trial":
            begun_s = at_s if begun_s is None else begun_s
        elif begun_s is not None:
            trials.append(Trial(from_s=begun_s, until_s=at_s, end=event))
            begun_s = None
        else:
            # A confirmed set that turned out too slow later.
            trials.append(Trial(from_s=at_s, until_s=at_s, end=event))
    if begun_s is not None:
        trials.append(Trial(from_s=begun_s, until_s=until_s, end="open"))
    return trials
