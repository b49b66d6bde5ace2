"""Brings the power limits of boards to what is asked for, step by step, so that each step may be the last.

Before a board is changed the book says what it had; afterwards the book says that it was changed. Whoever
comes next, after a crash at any point, finds in it what is to be put back.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Protocol

from airflow_provider_eaco.core.model.board_limits import LimitAnswer, LimitRequest
from airflow_provider_eaco.core.model.errors import EacoError
from airflow_provider_eaco.core.model.instruction import SetPowerLimit
from airflow_provider_eaco.core.model.placement import Placement
from airflow_provider_eaco.telemetry.limit_book import BoardLimit, LimitBook

# Boards may round what they are told; a choice of somebody else differs by more.
_SAME_W = 1.0


class BoardError(EacoError):
    """A board cannot be asked or told, with the cause in words."""


class Boards(Protocol):
    """The whole GPUs of this machine, by UUID. Every method raises :class:`BoardError`."""

    def limit_w(self, uuid: str) -> float:
        """Return the limit that is set now."""

    def span_w(self, uuid: str) -> tuple[float, float]:
        """Return the least and the largest limit that the board takes."""

    def is_divided(self, uuid: str) -> bool:
        """Tell whether MIG is on: such a board's limit is many tasks' at once."""

    def set_limit_w(self, uuid: str, limit_w: float) -> None:
        """Set the limit."""


def carry_out(request: LimitRequest, boards: Boards, book: LimitBook) -> LimitAnswer:
    """Lift what nobody holds any more, carry the changes out, and answer what was asked.

    :raises LimitBookError: if the book cannot be had; then nothing was changed.
    :raises OSError: if the book cannot be written; then no board was changed after that.
    """
    with book.locked():
        return _Work(request, boards, book).done()


class _Work:
    """One request, under the lock of the book."""

    def __init__(self, request: LimitRequest, boards: Boards, book: LimitBook) -> None:
        self._request = request
        self._boards = boards
        self._book = book
        self._limits = book.load()
        self._refused: dict[Placement, str] = {}
        self._unable: dict[str, str] = {}
        self._restored: dict[str, float] = {}
        self._taken: dict[str, float] = {}
        self._stuck: dict[str, str] = {}

    def done(self) -> LimitAnswer:
        held = set(self._request.held)
        lifted = {change.placement for change in self._request.changes if change.limit_w is None}
        self._restore(one for one in self._limits.values() if one.placement not in held - lifted)
        self._look_after()
        for change in self._request.changes:
            if change.limit_w is not None and change.placement in held:
                self._set(change, change.limit_w)
        for uuid in self._request.asked:
            cause = self._why_not(uuid)
            if cause is not None:
                self._unable[uuid] = cause
        return LimitAnswer(self._refused, self._unable, self._restored, self._taken, self._stuck)

    # -- Lifting

    def _restore(self, limits: Iterable[BoardLimit]) -> None:
        for limit in list(limits):
            try:
                present_w = self._boards.limit_w(limit.uuid)
                if _same(present_w, limit.before_w):
                    pass  # it was lifted by one who did not live to write that down, or never set
                elif limit.is_set and not _same(present_w, limit.limit_w):
                    self._taken[limit.uuid] = present_w
                else:
                    self._boards.set_limit_w(limit.uuid, limit.before_w)
                    self._restored[limit.uuid] = limit.before_w
            except BoardError as error:
                self._stuck[limit.uuid] = str(error)
            else:
                self._forget(limit.uuid)

    def _look_after(self) -> None:
        """Forget limits that somebody else has changed, and lift those of which only a part was set."""
        for limit in list(self._limits.values()):
            try:
                present_w = self._boards.limit_w(limit.uuid)
            except BoardError:
                continue
            if limit.is_set and not _same(present_w, limit.limit_w):
                self._taken[limit.uuid] = present_w
                self._forget(limit.uuid)
        # A set runs as its slowest board does: what remains of a limit on all of them has no use.
        whole = {
            limit.placement
            for limit in self._limits.values()
            if all(self._has(uuid, limit) for uuid in limit.placement.gpu_uuids)
        }
        self._restore(one for one in self._limits.values() if one.placement not in whole)

    def _has(self, uuid: str, like: BoardLimit) -> bool:
        own = self._limits.get(uuid)
        return own is not None and replace(own, uuid="", before_w=0.0) == _set_like(like)

    # -- Setting

    def _set(self, change: SetPowerLimit, limit_w: float) -> None:
        placement = change.placement
        try:
            for uuid in placement.gpu_uuids:
                self._set_one(uuid, placement, limit_w)
        except BoardError as error:
            self._refused[placement] = str(error)
            self._restore(one for one in self._limits.values() if one.placement == placement)

    def _set_one(self, uuid: str, placement: Placement, limit_w: float) -> None:
        if self._boards.is_divided(uuid):
            raise BoardError("the board is divided by MIG")
        least_w, most_w = self._boards.span_w(uuid)
        if not least_w <= limit_w <= most_w:
            raise BoardError(f"{limit_w:g} W is outside the {least_w:g} to {most_w:g} W that the board takes")
        known = self._limits.get(uuid)
        before_w = self._boards.limit_w(uuid) if known is None else known.before_w
        if limit_w > before_w + _SAME_W:
            raise BoardError(f"the board is held to {before_w:g} W already, not by a task's limit")
        limit = BoardLimit(uuid, before_w, limit_w, placement)
        self._note(limit)
        self._boards.set_limit_w(uuid, limit_w)
        if not _same(self._boards.limit_w(uuid), limit_w):
            raise BoardError(f"it says that it took {limit_w:g} W and has not")
        self._note(replace(limit, is_set=True))

    def _why_not(self, uuid: str) -> str | None:
        """Return why no limit can be set there, found out by setting the one that it has."""
        try:
            if self._boards.is_divided(uuid):
                return "the board is divided by MIG"
            self._boards.span_w(uuid)
            self._boards.set_limit_w(uuid, self._boards.limit_w(uuid))
        except BoardError as error:
            return str(error)
        return None

    def _note(self, limit: BoardLimit) -> None:
        self._limits[limit.uuid] = limit
        self._book.save(self._limits)

    def _forget(self, uuid: str) -> None:
        del self._limits[uuid]
        self._book.save(self._limits)


def _set_like(limit: BoardLimit) -> BoardLimit:
    return replace(limit, uuid="", before_w=0.0, is_set=True)


def _same(one_w: float, other_w: float) -> bool:
    return abs(one_w - other_w) <= _SAME_W
