"""How long one planning decision of the ordering ``horizon`` takes, run by ``make bench``.

Times are CPU times of a whole admission cycle with the policy ``exclusive``. A tenth of the GPUs are free,
the others are held by jobs that end in the next hours; sizes and run times are those of the benchmark
``order``.
"""

from __future__ import annotations

import math
import random
import statistics
import time
from dataclasses import replace

from airflow_provider_eaco.core.cycle import run_cycle
from airflow_provider_eaco.core.model.gpu import Gpu, Node
from airflow_provider_eaco.core.model.instruction import Launch
from airflow_provider_eaco.core.model.job import GpuRequest, Job, OrderKey, Progress
from airflow_provider_eaco.core.model.pool import PoolSettings
from airflow_provider_eaco.core.model.profile import ProfileBook, SoloProfile
from airflow_provider_eaco.core.model.snapshot import AirflowPool, ClusterSnapshot, NodeState, PoolState
from airflow_provider_eaco.core.policy.registry import make_ordering, make_policy

GPUS_PER_NODE = 8
SETTINGS = PoolSettings(policy="exclusive", ordering="horizon", aligned=True, memory_margin_mib=0)


def make_state(gpus: int, waiting: int, seed: int) -> ClusterSnapshot:
    """Return a cluster that has been filled by greedy jobs some hours ago, and a queue."""
    draw = random.Random(seed)  # noqa: S311  # a state to measure with, no secret
    nodes = {}
    for number in range(gpus // GPUS_PER_NODE):
        name = f"node{number:04d}"
        own = tuple(Gpu(f"{name}-{index}", name, index, "V100", None) for index in range(GPUS_PER_NODE))
        nodes[name] = NodeState(Node(name, own), free=own)
    profiles: dict[str, SoloProfile] = {}
    running = tuple(_job(f"r{number:04d}", draw, profiles) for number in range(gpus))
    queue = tuple(_job(f"w{number:04d}", draw, profiles) for number in range(waiting))
    book = ProfileBook({profile.key: profile for profile in profiles.values()})
    state = ClusterSnapshot(0.0, PoolState(SETTINGS, {"eaco": AirflowPool(None)}), nodes, running, book)
    for step in run_cycle(make_policy(SETTINGS), make_ordering("fifo"), state).instructions:
        if isinstance(step, Launch) and draw.random() < 0.9:
            state = state.with_launch(step.job, step.placement)
    return replace(state, now_s=1000.0, waiting=queue)


def _job(job_id: str, draw: random.Random, profiles: dict[str, SoloProfile]) -> Job:
    size = draw.choices((1, 2, 4, 8), (35, 25, 25, 15))[0]
    run_s = 3600 * math.exp(draw.uniform(math.log(0.5), math.log(12)))
    profiles[job_id] = SoloProfile(job_id, "V100", size, unit_s=run_s, units_total=1)
    order = OrderKey(draw.random(), "dag", job_id, -1, job_id)
    request = GpuRequest(size, job_id, max_stretch=None)
    return Job(job_id, request, "eaco", 0.0, order, progress=Progress(units_total=1))


def main() -> None:
    """Print median and maximum of each case."""
    print("one decision of the ordering horizon (policy exclusive)")  # noqa: T201  # the product of a benchmark
    for gpus, waiting, states, aim in ((64, 30, 20, "15 ms"), (512, 1000, 5, "500 ms")):
        times = []
        launches = 0
        for seed in range(states):
            state = make_state(gpus, waiting, seed)
            begin = time.process_time()
            plan = run_cycle(make_policy(SETTINGS), make_ordering("horizon"), state)
            times.append((time.process_time() - begin) * 1000)
            launches += sum(isinstance(step, Launch) for step in plan.instructions)
        print(  # noqa: T201  # the product of a benchmark
            f"  {waiting:5} waiting x {gpus:4} GPUs  median {statistics.median(times):7.1f} ms"
            f"  max {max(times):7.1f} ms  ({launches / states:.1f} launched)  aim: below {aim}"
        )


if __name__ == "__main__":
    main()
