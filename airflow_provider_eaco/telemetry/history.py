"""What happened on the simulated nodes, in simulated time: one line per resident and per node interval.

A line is final when it is written. The journal is a file beside the state file; a caller that dies between
writing lines and replacing the state leaves lines that the state does not count, and the next caller writes
the same numbers again: of several lines with one number the last counts.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, BinaryIO

# One older generation of this size is kept; on a machine that only simulates this is some 50,000 jobs.
MAX_JOURNAL_BYTES = 16 * 2**20


@dataclass(frozen=True, slots=True)
class ResidentSegment:
    """One job on its GPUs while the same others were there.

    ``start_s``, ``end_s``: simulated seconds since the state began. ``co_residents``: the job ids of the
    others. ``work_s``: solo seconds of work done, so that run time / work is the stretch. ``energy_j``: its
    part of the energy of its GPUs; the parts of all residents and of idle GPUs add up to the node's.
    """

    job_id: str
    token: int
    family: str
    node: str
    gpu_uuids: tuple[str, ...]
    co_residents: tuple[str, ...]
    start_s: float
    end_s: float
    work_s: float
    energy_j: float


@dataclass(frozen=True, slots=True)
class NodeInterval:
    """One node while its power stayed the same; ``busy_gpus`` of its ``gpus`` had residents."""

    node: str
    start_s: float
    end_s: float
    power_w: float
    busy_gpus: int
    gpus: int

    @property
    def energy_j(self) -> float:
        return self.power_w * (self.end_s - self.start_s)


Segment = ResidentSegment | NodeInterval

_KINDS: dict[str, type[ResidentSegment | NodeInterval]] = {
    "resident": ResidentSegment,
    "node": NodeInterval,
}
_KIND_OF = {kind: name for name, kind in _KINDS.items()}


@dataclass(frozen=True, slots=True)
class History:
    """All that happened since the state began, the present intervals included up to ``now_s``."""

    now_s: float
    residents: tuple[ResidentSegment, ...]
    nodes: tuple[NodeInterval, ...]

    def energy_j(self, node: str | None = None, start_s: float = 0.0, end_s: float | None = None) -> float:
        """Return the energy of one node, or of all, between two simulated instants."""
        until_s = self.now_s if end_s is None else end_s
        return sum(
            interval.power_w * max(0.0, min(interval.end_s, until_s) - max(interval.start_s, start_s))
            for interval in self.nodes
            if node is None or interval.node == node
        )

    def allocated_gpu_s(self, start_s: float = 0.0, end_s: float | None = None) -> float:
        """Return the GPU seconds with at least one resident between two simulated instants."""
        until_s = self.now_s if end_s is None else end_s
        return sum(
            interval.busy_gpus * max(0.0, min(interval.end_s, until_s) - max(interval.start_s, start_s))
            for interval in self.nodes
        )


class Journal:
    """The file of finished segments. The holder of the state's lock is its only writer."""

    def __init__(self, path: Path, max_bytes: int = MAX_JOURNAL_BYTES) -> None:
        self._path = path
        self._older = path.with_name(path.name + ".1")
        self._max_bytes = max_bytes

    def append(self, generation: float, first: int, segments: Sequence[Segment]) -> None:
        """Append ``segments`` numbered from ``first`` in the state's ``generation``."""
        if not segments:
            return
        if self._size() > self._max_bytes:
            self._path.replace(self._older)
        lines = "".join(
            json.dumps(
                {
                    "generation": generation,
                    "number": number,
                    "kind": _KIND_OF[type(segment)],
                    **asdict(segment),
                },
                separators=(",", ":"),
            )
            + "\n"
            for number, segment in enumerate(segments, first)
        )
        with self._path.open("a+b") as file:
            if not _ends_with_newline(file):
                lines = "\n" + lines
            file.write(lines.encode())

    def read(self, generation: float, count: int) -> tuple[Segment, ...]:
        """Return the segments numbered below ``count`` of this generation, in order; unreadable lines are
        skipped, since a writer may have died in one.
        """
        found: dict[int, Segment] = {}
        for path in (self._older, self._path):
            for row in _rows(path):
                if row.pop("generation", None) != generation:
                    continue
                number, kind = row.pop("number", -1), _KINDS.get(str(row.pop("kind", "")))
                if kind is not None and isinstance(number, int) and 0 <= number < count:
                    segment = _segment(kind, row)
                    if segment is not None:
                        found[number] = segment
        return tuple(found[number] for number in sorted(found))

    def _size(self) -> int:
        try:
            return self._path.stat().st_size
        except FileNotFoundError:
            return 0


def history(now_s: float, segments: Iterable[Segment]) -> History:
    """Return the segments as one history up to ``now_s``."""
    kept = tuple(segments)
    return History(
        now_s,
        tuple(segment for segment in kept if isinstance(segment, ResidentSegment)),
        tuple(segment for segment in kept if isinstance(segment, NodeInterval)),
    )


def _ends_with_newline(file: BinaryIO) -> bool:
    size = file.seek(0, os.SEEK_END)
    if size == 0:
        return True
    file.seek(size - 1)
    return file.read(1) == b"\n"


def _rows(path: Path) -> Iterator[dict[str, Any]]:
    try:
        text = path.read_bytes()
    except FileNotFoundError:
        return
    for line in text.splitlines():
        try:
            row = json.loads(line)
        except ValueError:
            continue
        if isinstance(row, dict):
            yield row


def _segment(kind: type[ResidentSegment | NodeInterval], row: dict[str, Any]) -> Segment | None:
    if row.keys() != {item.name for item in fields(kind)}:
        return None
    values: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value for name, value in row.items()
    }
    return kind(**values)
