"""Alternatives: where a job could have gone beside what was decided, with joules, and why it did not."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from airflow_provider_eaco.core.model.placement import Placement


class Way(StrEnum):
    """How a job could run: ``ALONE`` on GPUs of its own, ``JOIN`` a set; ``CLOSED`` sets take nobody."""

    ALONE = "alone"
    JOIN = "join"
    CLOSED = "closed"


@dataclass(frozen=True, slots=True)
class Alternative:
    """One way for a job to run, and what speaks against it.

    ``families`` are those who are there, ``placement`` is where (``None``: nowhere now). ``energy_j`` are the
    joules that its work adds there, as predicted: of all its units that are left, or with ``per_unit`` of
    one, since nobody knows how many there are. ``None`` is unknown. ``lost`` is empty for the one that was
    taken.
    """

    way: Way
    families: tuple[str, ...] = ()
    placement: Placement | None = None
    slowdown: float | None = None
    energy_j: float | None = None
    per_unit: bool = False
    lost: str = ""

    @property
    def text(self) -> str:
        """The alternative in one line, as every surface shows it."""
        where = "" if self.placement is None else f" on {self.placement.node}"
        if self.way is Way.CLOSED:
            return f"other sets: {self.lost}"
        name = "GPUs of its own" if self.way is Way.ALONE else f"beside {' + '.join(self.families)}"
        facts = [f"{name}{where}: {self._energy}"]
        if self.way is Way.JOIN:
            facts.append("slowdown unknown" if self.slowdown is None else f"slowdown {self.slowdown:.3f}")
        return f"{', '.join(facts)}; {'not taken: ' + self.lost if self.lost else 'taken'}"

    @property
    def _energy(self) -> str:
        if self.energy_j is None:
            return "joules unknown"
        return f"{shown_mj(self.energy_j)}{' a unit' if self.per_unit else ''}"


def shown_mj(energy_j: float) -> str:
    """Return joules as megajoules, or kilojoules below a tenth of one."""
    return f"{energy_j / 1e3:.1f} kJ" if abs(energy_j) < 1e5 else f"{energy_j / 1e6:.2f} MJ"
