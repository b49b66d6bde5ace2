"""The book of the power limits that were set on this machine, and of what was there before.

A limit outlives whoever set it, so what it replaced is on disk before it is set. The book is one JSON file
that is replaced as a whole; whoever changes boards holds its lock, so that the schedulers of one machine do
it one after the other.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from airflow_provider_eaco.core.model.board_limits import LimitInForce
from airflow_provider_eaco.core.model.errors import EacoError
from airflow_provider_eaco.core.model.placement import Placement
from airflow_provider_eaco.telemetry.file_lock import lock_within

VERSION = 1
LOCK_TIMEOUT_S = 10.0


class LimitBookError(EacoError):
    """The book cannot be read, or somebody else holds it for too long."""


@dataclass(frozen=True, slots=True)
class BoardLimit:
    """A limit of ours on one board. ``is_set``: the board has told since that it has it; before that it may
    have it or not.
    """

    uuid: str
    before_w: float
    limit_w: float
    placement: Placement
    is_set: bool = False


Limits = Mapping[str, BoardLimit]


class LimitBook:
    """The book in the file ``path``, with its lock beside it."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def load(self) -> dict[str, BoardLimit]:
        """Return the limits by UUID; none if there is no book.

        :raises LimitBookError: if it cannot be read. It is never taken for empty: what the boards had before
            stands nowhere else.
        """
        try:
            content = self.path.read_bytes()
        except FileNotFoundError:
            return {}
        except OSError as error:
            raise LimitBookError(f"{self.path} cannot be read: {error}") from error
        try:
            return _limits(json.loads(content))
        except (ValueError, TypeError, LookupError) as error:
            raise LimitBookError(
                f"{self.path} is damaged ({error!r}); set the limits of the boards by hand and delete it"
            ) from error

    def save(self, limits: Limits) -> None:
        """Replace the book; afterwards it is on disk.

        :raises OSError: if it cannot be written; then it is as it was.
        """
        rows = [asdict(limit) for _, limit in sorted(limits.items())]
        new = self.path.with_name(self.path.name + ".new")
        with new.open("w") as file:
            json.dump({"version": VERSION, "limits": rows}, file)
            file.flush()
            os.fsync(file.fileno())
        new.replace(self.path)
        _sync_folder(self.path.parent)

    @contextmanager
    def locked(self, timeout_s: float = LOCK_TIMEOUT_S) -> Iterator[None]:
        """Keep others from changing boards and book meanwhile; a process that dies lets go of it.

        :raises LimitBookError: if it is not free within ``timeout_s``.
        :raises OSError: if there can be no file.
        """
        self.path.parent.mkdir(parents=True, exist_ok=True)
        lock = self.path.with_name(self.path.name + ".lock")
        descriptor = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            if not lock_within(descriptor, timeout_s):
                raise LimitBookError(f"{lock} is held by another process for {timeout_s:.0f} s")
            yield
        finally:
            os.close(descriptor)


def in_force(limits: Limits) -> dict[Placement, LimitInForce]:
    """Return the limits that are known to be set on every board of their placement."""
    found: dict[Placement, LimitInForce] = {}
    for limit in limits.values():
        own = [limits.get(uuid) for uuid in limit.placement.gpu_uuids]
        whole = [one for one in own if one is not None and one.is_set and one.limit_w == limit.limit_w]
        if len(whole) == len(own) and all(one.placement == limit.placement for one in whole):
            found[limit.placement] = LimitInForce(limit.limit_w, tuple(one.before_w for one in whole))
    return found


def _limits(document: dict[str, Any]) -> dict[str, BoardLimit]:
    if document["version"] != VERSION:
        raise ValueError(f"version {document['version']!r}, {VERSION} is understood")
    return {row["uuid"]: _limit(row) for row in document["limits"]}


def _limit(row: dict[str, Any]) -> BoardLimit:
    placement = Placement(row["placement"]["node"], tuple(row["placement"]["gpu_uuids"]))
    return BoardLimit(
        row["uuid"], float(row["before_w"]), float(row["limit_w"]), placement, row["is_set"] is True
    )


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
