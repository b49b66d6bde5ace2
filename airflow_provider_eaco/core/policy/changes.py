"""What changed from one snapshot to the next, and a log of it for those who follow at their own pace."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping, Sequence
from itertools import compress
from typing import Generic, TypeVar

T = TypeVar("T")
K = TypeVar("K")


class ChangeLog(Generic[T]):
    """What changed, oldest first, of which only the latest part is kept.

    A follower remembers :attr:`end` and asks later what has been added since. One that comes back too late
    has to look at everything anew.
    """

    def __init__(self) -> None:
        self._entries: list[T] = []
        self._dropped = 0

    @property
    def end(self) -> int:
        """The number of all entries that there ever were."""
        return self._dropped + len(self._entries)

    def add(self, entry: T) -> None:
        self._entries.append(entry)

    def extend(self, entries: Iterable[T]) -> None:
        self._entries.extend(entries)

    def reaches(self, position: int) -> bool:
        """Tell whether everything is still kept that was added after the log had this end."""
        return position >= self._dropped

    def since(self, position: int) -> Sequence[T]:
        """Return what was added after the log had this end, each once, in the order of its first change."""
        return list(dict.fromkeys(self._entries[position - self._dropped :]))

    def keep(self, most: int) -> None:
        """Drop the older half once there are more than ``most`` entries."""
        surplus = len(self._entries) - most
        if surplus > 0:
            surplus += most // 2
            del self._entries[:surplus]
            self._dropped += surplus


def replaced(before: Mapping[K, object], after: Mapping[K, object]) -> list[K]:
    """Return the names under which another object stands, or one came or went.

    Successive snapshots mostly have the same names in the same order; then no name has to be looked up.
    """
    if before is after:
        return []
    if list(before) == list(after):
        return list(compress(after, map(operator.is_not, before.values(), after.values())))
    gone = [name for name in before if name not in after]
    return gone + [name for name, state in after.items() if before.get(name) is not state]
