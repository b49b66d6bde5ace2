"""Power of GPUs as a function of how busy they are, where the published measurements support one."""

from __future__ import annotations

import math
from collections.abc import Sequence

# Fit to the ten measured sets of the EaCO paper (arXiv 2412.08294, Tables 1-4), R2 = 0.992: a whole server
# with 8 V100 draws 392 W idle and 158.5 W per square root of a per cent of mean GPU utilisation above that.
V100 = "V100"
V100_NODE_GPUS = 8
V100_NODE_IDLE_W = 392.0
V100_NODE_W_PER_SQRT_PCT = 158.5
V100_IDLE_W = V100_NODE_IDLE_W / V100_NODE_GPUS

# Idle power of one board in W, without its host and without a CUDA context.
BOARD_IDLE_W = {"V100": 30.0, "A100-40": 50.0, "A100-80": 54.0, "H100": 72.0, "T4": 10.0}
# The power limit of the common server board: no job draws more for long.
BOARD_LIMIT_W = {"V100": 300.0, "A100-40": 400.0, "A100-80": 400.0, "H100": 700.0, "T4": 70.0}
# What the host adds for each GPU: the idle server of the paper less its idle boards. Assumed for all models.
HOST_W_PER_GPU = V100_IDLE_W - BOARD_IDLE_W[V100]


def v100_power_w(utilisation_pct: float, gpu_count: int) -> float:
    """Return the draw of ``gpu_count`` V100 with their share of the host (``scope = node``).

    :param utilisation_pct: sum of the members' mean GPU utilisation; above 100 the GPUs are full.
    """
    full_node_w = V100_NODE_IDLE_W + V100_NODE_W_PER_SQRT_PCT * math.sqrt(min(100.0, utilisation_pct))
    return full_node_w * gpu_count / V100_NODE_GPUS


def largest_joint_power_w(solo_w: Sequence[float], gpu_model: str, gpu_count: int) -> float | None:
    """Return the most that jobs with these solo powers draw together, ``None`` for an unknown model.

    Each solo figure holds the idle draw of the same boards once; together it is drawn once. A set draws at
    least its largest member, and its limit may lie lower: this is the careful end.
    """
    idle_w = BOARD_IDLE_W.get(gpu_model)
    if idle_w is None:
        return None
    return max(*solo_w, math.fsum(solo_w) - (len(solo_w) - 1) * idle_w * gpu_count)


def joint_power_w(
    solo_w: Sequence[float], rates: Sequence[float], gpu_model: str, gpu_count: int
) -> float | None:
    """Return what boards draw if each job spends its dynamic power at its ``rate`` beside the others.

    A rate is 1 / slowdown. An assumption: no published table has the power of pairs on one board together
    with their speeds. ``None`` for an unknown model.
    """
    idle_w = BOARD_IDLE_W.get(gpu_model)
    if idle_w is None:
        return None
    dynamic_w = [(power_w - idle_w * gpu_count) * rate for power_w, rate in zip(solo_w, rates, strict=True)]
    return idle_w * gpu_count + math.fsum(dynamic_w)
