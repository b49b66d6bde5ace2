"""The GPU models that a simulated node can have: memory, idle draw and board limit; names of real boards.

Idle board power is that of data-sheet-like measurements (V100 30 W, A100-40 50 W, A100-80 54 W, H100 72 W,
T4 10 W). A node also has a host: the fitted idle draw of the 8 x V100 servers of the EaCO paper
(arXiv 2412.08294) is 392 W, 49 W per GPU, hence 19 W of host per GPU. We assume the same host for all models.
"""

from __future__ import annotations

from dataclasses import dataclass

# 392 + 158.5 * sqrt(U) W for eight V100, U the mean GPU utilisation in percent: fits the ten measured sets of
# the EaCO paper with R2 = 0.992.
V100_NODE_GPUS = 8
V100_NODE_IDLE_W = 392.0
V100_NODE_ROOT_W = 158.5
V100_BOARD_LIMIT_W = 300.0
HOST_W_PER_GPU = V100_NODE_IDLE_W / V100_NODE_GPUS - 30.0


@dataclass(frozen=True, slots=True)
class GpuModel:
    """One model of GPU. ``idle_w`` covers the board and its share of the host; ``board_limit_w`` is the limit
    of the common server board. Only V100 is measured: on the others we assume that the power above idle
    has the V100's shape, scaled by the board limit.
    """

    name: str
    memory_mib: int
    idle_w: float
    board_limit_w: float

    @property
    def dynamic_scale(self) -> float:
        """How much more than a V100 it draws above idle at equal utilisation."""
        return self.board_limit_w / V100_BOARD_LIMIT_W

    def draw_w(self, v100_node_power_w: float, gpu_count: int) -> float:
        """Return the draw of ``gpu_count`` GPUs of this model that do what eight V100 do at that draw."""
        dynamic_w = (v100_node_power_w - V100_NODE_IDLE_W) / V100_NODE_GPUS
        return gpu_count * (self.idle_w + dynamic_w * self.dynamic_scale)


def _model(name: str, memory_gib: int, board_idle_w: float, board_limit_w: float) -> GpuModel:
    return GpuModel(name, memory_gib * 1024, board_idle_w + HOST_W_PER_GPU, board_limit_w)


GPU_MODELS: dict[str, GpuModel] = {
    model.name: model
    for model in (
        _model("V100", 16, 30, 300),
        _model("V100-32", 32, 30, 300),
        _model("A100-40", 40, 50, 400),
        _model("A100-80", 80, 54, 400),
        _model("H100", 80, 72, 700),
        _model("T4", 16, 10, 70),
    )
}

# Boards of these models as their driver names them. PCIe cards draw less and are models of their own.
_BOARDS = {
    "Tesla V100-SXM2-16GB": "V100",
    "Tesla V100-SXM2-32GB": "V100-32",
    "Tesla V100-SXM3-32GB": "V100-32",
    "NVIDIA A100-SXM4-40GB": "A100-40",
    "NVIDIA A100-SXM4-80GB": "A100-80",
    "NVIDIA H100 80GB HBM3": "H100",
    "Tesla T4": "T4",
}


def model_of_board(name: str) -> str:
    """Return the model of a board that a driver calls ``name``: ours where we have one, else its own words.

    A MIG partition is a model of its own.
    """
    return _BOARDS.get(name) or name.removeprefix("NVIDIA ").removeprefix("Tesla ").strip() or "unknown"
