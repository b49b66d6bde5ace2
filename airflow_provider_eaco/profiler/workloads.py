"""The built-in workload set in PyTorch, on synthetic data: a convolution net, a transformer, a model bound by
its embedding and one that waits for its input.

``python -m airflow_provider_eaco.profiler.workloads NAME`` trains one of them.

torch comes with the extra ``profiling`` and is loaded only here, when a workload runs.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

from airflow_provider_eaco.core.model.errors import EacoError
from airflow_provider_eaco.profiler.commands import Command

# Optimiser steps that make one step of the profile: long enough to be timed by a line of output.
PER_STEP = 20
NAMES = ("convnet", "transformer", "embedding", "input-bound")


def workload_commands(*, wanted: bool) -> list[Command]:
    """Return the set as commands; nothing if it is not wanted.

    :raises EacoError: if torch is not installed.
    """
    if not wanted:
        return []
    if importlib.util.find_spec("torch") is None:
        raise EacoError("--workloads needs PyTorch: pip install 'airflow-provider-eaco[profiling]'")
    return [Command(name, (sys.executable, "-m", __name__, name)) for name in NAMES]


def train(name: str, torch: Any) -> Iterator[None]:
    """Train the workload for ever on the first GPU that is visible; yield after each step of the profile."""
    makers: dict[str, Callable[[Any], tuple[Any, Callable[[], Any]]]] = {
        "convnet": _convnet,
        "transformer": _transformer,
        "embedding": _embedding,
        "input-bound": _input_bound,
    }
    torch.manual_seed(0)
    model, batch = makers[name](torch)
    model.to("cuda")
    optimiser = torch.optim.SGD(model.parameters(), lr=0.01)
    while True:
        for _ in range(PER_STEP):
            optimiser.zero_grad(set_to_none=True)
            model(batch()).float().square().mean().backward()
            optimiser.step()
        torch.cuda.synchronize()
        yield


def _convnet(torch: Any) -> tuple[Any, Callable[[], Any]]:
    nn = torch.nn
    widths = (3, 64, 128, 256, 512)
    layers: list[Any] = []
    for before, after in pairwise(widths):
        layers += [nn.Conv2d(before, after, 3, stride=2, padding=1), nn.BatchNorm2d(after), nn.ReLU()]
    model = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 1000))
    images = torch.randn(64, 3, 224, 224, device="cuda")
    return model, lambda: images


def _transformer(torch: Any) -> tuple[Any, Callable[[], Any]]:
    layer = torch.nn.TransformerEncoderLayer(512, 8, 2048, batch_first=True)
    tokens = torch.randn(16, 256, 512, device="cuda")
    return torch.nn.TransformerEncoder(layer, 6), lambda: tokens


def _embedding(torch: Any) -> tuple[Any, Callable[[], Any]]:
    model = torch.nn.Sequential(
        torch.nn.EmbeddingBag(2_000_000, 64, mode="mean"), torch.nn.Linear(64, 256), torch.nn.Linear(256, 1)
    )
    return model, lambda: torch.randint(0, 2_000_000, (8192, 32), device="cuda")


def _input_bound(torch: Any) -> tuple[Any, Callable[[], Any]]:
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3 * 224 * 224, 256))

    def batch() -> Any:
        # Made and reshaped on the host each time, as a loader decodes and augments.
        images = torch.rand(32, 3, 224, 224)
        return ((images - 0.5) / 0.25).flip(-1).contiguous().to("cuda")

    return model, batch


def main(words: list[str]) -> int:
    """Train the workload that is named, and print a line after each step; 2 for a name that is none."""
    if len(words) != 1 or words[0] not in NAMES:
        print(f"name one of: {', '.join(NAMES)}", file=sys.stderr)  # noqa: T201 - a command's answer
        return 2
    for number, _ in enumerate(train(words[0], importlib.import_module("torch")), start=1):
        print(f"eaco-step {number}", flush=True)  # noqa: T201 - how a step is told
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
