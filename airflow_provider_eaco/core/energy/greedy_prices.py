"""Energy prices without a solver: what work of each class is worth, by the best sets one after the other."""

from __future__ import annotations

import numpy as np

from airflow_provider_eaco.core.energy.configuration import ConfigurationProgram, FloatArray

# Halvings of the price of stretch, and sets per class that may set prices; beyond them nothing moves.
_HALVINGS = 16
_ROUNDS_PER_CLASS = 12
_ROUNDING = 1e-6


def greedy_prices(program: ConfigurationProgram, mean_stretch: float) -> tuple[FloatArray, float]:
    """Return the price of the work of each class, and that of a second of run time, in watts.

    Each class begins at what it costs alone. The set in which the prices exceed what it costs by most takes
    its members' prices down to its cost, until no set is left below its price. The price of run time is the
    least at which the best set of each class keeps ``mean_stretch``, on average over the work.
    """
    highest_w = 20 * float(program.power_w.max())
    low_w, high_w = 0.0, highest_w
    if _stretch(program, *_prices(program, 0.0)) <= mean_stretch:
        return _prices(program, 0.0)[0], 0.0
    for _ in range(_HALVINGS):
        middle_w = (low_w + high_w) / 2
        if _stretch(program, *_prices(program, middle_w)) <= mean_stretch:
            high_w = middle_w
        else:
            low_w = middle_w
    return _prices(program, high_w)[0], high_w


def _prices(program: ConfigurationProgram, stretch_w: float) -> tuple[FloatArray, FloatArray]:
    """Return the prices of the classes and what a second of each set costs."""
    cost_w = program.power_w + stretch_w * program.presence.sum(axis=0)
    alone = [column for column, members in enumerate(program.members) if len(members) == 1]
    price_w = np.full(len(program.classes), np.inf)
    for column in alone:
        number = program.members[column][0]
        price_w[number] = min(price_w[number], cost_w[column] / program.progress[number, column])
    for _ in range(_ROUNDS_PER_CLASS * len(price_w)):
        ratio = cost_w / (price_w @ program.progress)
        worst = int(np.argmin(ratio))
        if ratio[worst] >= 1 - _ROUNDING:
            break
        price_w[list(set(program.members[worst]))] *= ratio[worst]
    return price_w, cost_w


def _stretch(program: ConfigurationProgram, price_w: FloatArray, cost_w: FloatArray) -> float:
    """Return the mean stretch if each class did its work in the set that loses least."""
    loss_w = cost_w - price_w @ program.progress
    work_s, total = program.work_s, 0.0
    for number, own_s in enumerate(work_s):
        inside = np.flatnonzero(program.presence[number])
        best = inside[int(np.argmin(loss_w[inside]))]
        total += own_s * program.presence[number, best] / program.progress[number, best]
    return total / float(work_s.sum())
