"""The truth of the benchmark ``eaco-nodes``, written down a second time for the checker.

EaCO paper (arXiv 2412.08294), tables 1 to 4: W of a server with 8 V100, mean GPU utilisation in percent, and
hours to the end alone and together; other sets by the rule of the benchmark.
"""

from __future__ import annotations

import math

from tests.simulation.checker import Rules

ALONE = {
    "J1": (712.0, 4.72, 34.76),
    "J2": (959.0, 11.17, 35.13),
    "J3": (1330.0, 36.61, 36.01),
    "J4": (1533.0, 48.01, 36.13),
}
TOGETHER = {
    ("J1", "J3"): (1390.0, 36.63),
    ("J1", "J4"): (1506.0, 36.51),
    ("J2", "J4"): (1644.0, 37.01),
    ("J1", "J2", "J3"): (1541.0, 38.28),
    ("J1", "J2", "J4"): (1713.0, 38.26),
    ("J1", "J2", "J3", "J4"): (1944.0, 44.21),
}
RATE_OF_SIZE = {2: 1 / 1.035, 3: 1 / 1.083, 4: 1 / 1.245}


# Zeus (NSDI 2023), ResNet-50 with batch 256 on a V100: seconds and W of an epoch at a power limit in W.
EPOCH_AT_LIMIT = {
    250.0: (3514.986666666666, 220.25029530245453),
    225.0: (3584.3033333333333, 205.43829852803177),
    200.0: (3700.973333333334, 184.94427296655326),
    175.0: (3852.1800000000003, 166.37217540170334),
    150.0: (4148.66, 144.59474877795884),
    125.0: (5064.97, 121.9660191434676),
}


def paper_truth(
    families: tuple[str, ...], gpus: int, limit_w: float | None = None
) -> tuple[float, tuple[float, ...]]:
    """Return watts and rates of a set; on a part of the server's GPUs it draws that part."""
    power_w, rates = _at_full_power(families)
    if limit_w is not None:
        seconds, watts = EPOCH_AT_LIMIT[limit_w]
        full_seconds, full_watts = EPOCH_AT_LIMIT[250.0]
        busy = min(1.0, sum(ALONE[family][1] for family in families) / 100)
        slower = 1 + busy * (seconds / full_seconds - 1)
        power_w = 392 + (power_w - 392) * (seconds * watts) / (full_seconds * full_watts) / slower
        rates = tuple(rate / slower for rate in rates)
    return power_w * gpus / 8, rates


def _at_full_power(families: tuple[str, ...]) -> tuple[float, tuple[float, ...]]:
    if len(families) == 1:
        return ALONE[families[0]][0], (1.0,)
    if families in TOGETHER:
        power_w, hours = TOGETHER[families]
        rate = sum(ALONE[family][2] for family in families) / len(families) / hours
    else:
        used = sum(ALONE[family][1] for family in families)
        power_w = max(392 + 158.5 * math.sqrt(min(100.0, used)), *(ALONE[family][0] for family in families))
        rate = RATE_OF_SIZE[len(families)] * min(1.0, 100 / used)
    return power_w, (rate,) * len(families)


def paper_rules(max_residents: int) -> Rules:
    """Return the rules of a run on the paper's nodes."""
    return Rules(paper_truth, free_gpu_w=49.0, base_w=0.0, asleep_w=15.0, max_residents=max_residents)


def gang_rules() -> Rules:
    """Return the rules of a run of ``order``: nobody shares, and a stranger keeps its GPUs 40 % busy."""

    def truth(
        families: tuple[str, ...], gpus: int, limit_w: float | None = None
    ) -> tuple[float, tuple[float]]:
        return (392 + 158.5 * math.sqrt(40.0)) * gpus / 8, (1.0,)

    return Rules(truth, free_gpu_w=49.0, base_w=0.0, asleep_w=15.0, max_residents=1)
