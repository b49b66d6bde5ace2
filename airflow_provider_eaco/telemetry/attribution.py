"""How the draw of GPUs is attributed to those who share them."""

from __future__ import annotations

from collections.abc import Sequence


def split_power(power_w: float, idle_w: float, utilisation_pct: Sequence[float]) -> list[float]:
    """Return each resident's part of the draw: of the idle part equal ones, of what is above it in the
    proportion of the solo utilisations (equal ones where none is above 0). The parts add up to ``power_w``.
    """
    count = len(utilisation_pct)
    base_w = min(power_w, idle_w) / count
    dynamic_w = max(0.0, power_w - idle_w)
    total_pct = sum(utilisation_pct)
    weights = [pct / total_pct for pct in utilisation_pct] if total_pct > 0 else [1 / count] * count
    parts_w = [base_w + dynamic_w * weight for weight in weights]
    parts_w[-1] = power_w - sum(parts_w[:-1])
    return parts_w
