"""How long one admission cycle takes, with a realistic mixed state and with an empty cluster.

Run by ``make bench``. Times are CPU times: a cycle does nothing but compute, and what else the machine does
must not blur them. The state is drawn with a fixed seed: 8-GPU nodes, filled by the policy itself in two
rounds, after each of which a tenth of the sets ended and most trials were confirmed; twenty families with
profiles and four without; jobs of 1 to 8 GPUs; a tenth of the jobs with a deadline of their own and one in
fifty with progress of its own, which makes each of those a kind by itself.

A *cold* cycle is the first of a new policy, on the drawn state. A *warm* one is what the live loop runs: what
the cycle before it launched has been carried out, 5 s have gone by, two sets have ended, and as many new jobs
wait as have left the queue.
"""

from __future__ import annotations

import argparse
import gc
import random
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

from airflow_provider_eaco.core.cycle import run_cycle
from airflow_provider_eaco.core.model.gpu import Gpu, Node
from airflow_provider_eaco.core.model.instruction import Launch, Plan
from airflow_provider_eaco.core.model.job import GpuRequest, Job, OrderKey, Progress
from airflow_provider_eaco.core.model.placement import LeaseState
from airflow_provider_eaco.core.model.pool import PoolSettings
from airflow_provider_eaco.core.model.profile import CoallocationProfile, ProfileBook, SoloProfile, family_set
from airflow_provider_eaco.core.model.snapshot import (
    AirflowPool,
    ClusterSnapshot,
    NodeState,
    Observation,
    PoolState,
    Resident,
)
from airflow_provider_eaco.core.policy.registry import make_ordering, make_policy

NOW_S = 1_000_000.0
PROFILED = [f"family{index:02d}" for index in range(20)]
UNKNOWN = [f"new{index}" for index in range(4)]
GPUS_PER_NODE = 8


def make_state(waiting: int, gpus: int, *, empty: bool, seed: int = 1) -> ClusterSnapshot:
    """Return the drawn state: ``gpus`` GPUs in all, ``waiting`` jobs."""
    draw = random.Random(seed)  # noqa: S311  # a state to measure with, no secret
    nodes = {}
    for number in range(gpus // GPUS_PER_NODE):
        fresh = _node(f"node{number:04d}")
        nodes[fresh.node.name] = fresh
    pool = PoolState(PoolSettings(), {"eaco": AirflowPool(None)})
    state = ClusterSnapshot(NOW_S - 9000, pool, nodes, (), _book(draw))
    if not empty:
        state = _filled(_filled(state, gpus, draw), gpus // 2, draw)
    queue = tuple(_job(f"w{number:05d}", draw) for number in range(waiting))
    return replace(state, now_s=NOW_S, waiting=queue)


def _filled(state: ClusterSnapshot, jobs: int, draw: random.Random) -> ClusterSnapshot:
    """Return the state after a cycle with that many new jobs, most trials over, a tenth of the sets ended."""
    queue = tuple(_job(f"r{state.now_s:.0f}-{number:05d}", draw) for number in range(jobs))
    for instruction in run_cycle(
        make_policy(state.pool.settings), make_ordering("fifo"), replace(state, waiting=queue)
    ).instructions:
        if isinstance(instruction, Launch):
            state = state.with_launch(instruction.job, instruction.placement)
    nodes = {name: _aged(node, draw) for name, node in state.nodes.items()}
    return replace(state, nodes=nodes, now_s=state.now_s + 3000)


def _aged(state: NodeState, draw: random.Random) -> NodeState:
    kept = [held for held in state.sets if draw.random() > 0.1]
    sets = tuple(replace(held, residents=tuple(_settled(held.residents, draw))) for held in kept)
    held_uuids = {gpu.uuid for held in kept for gpu in held.gpus}
    free = tuple(gpu for gpu in state.node.gpus if gpu.uuid not in held_uuids)
    return replace(state, sets=sets, free=free)


def _settled(residents: tuple[Resident, ...], draw: random.Random) -> list[Resident]:
    if len(residents) == 1 or draw.random() < 0.2:
        return list(residents)
    seen = Observation(residents[0].set_version, 3, 103.0, 309.0)
    return [replace(resident, state=LeaseState.CONFIRMED, observation=seen) for resident in residents]


def _node(name: str) -> NodeState:
    own = tuple(Gpu(f"{name}-{index}", name, index, "V100", 32_768, 500) for index in range(GPUS_PER_NODE))
    return NodeState(Node(name, own, 512_000), free=own)


def _job(job_id: str, draw: random.Random) -> Job:
    family = draw.choice(PROFILED) if draw.random() < 0.9 else draw.choice(UNKNOWN)
    request = GpuRequest(
        draw.choices((1, 2, 4, 8), (55, 20, 15, 10))[0],
        family,
        gpu_memory_mib=draw.choice((4096, 8192)),
        max_stretch=draw.choice((1.05, 1.15, 1.15, None)),
        deadline_s=draw.uniform(2e5, 9e5) if draw.random() < 0.1 else None,
    )
    done = draw.randrange(90) if draw.random() < 0.02 else 0
    progress = Progress(done, 90, done * 101.0, done > 0, 100.0) if done else Progress(units_total=90)
    order = OrderKey(NOW_S - draw.uniform(0, 9e4), f"dag{draw.randrange(30)}", job_id, -1, job_id)
    return Job(
        job_id,
        request,
        "eaco",
        NOW_S - 100,
        order,
        priority=draw.choice((0, 0, 0, 5)),
        on_hold=draw.random() < 0.01,
        progress=progress,
    )


def _book(draw: random.Random) -> ProfileBook:
    solo, shared = {}, {}
    for width in (1, 2, 4, 8):
        for family in PROFILED:
            busy = draw.uniform(5, 50)
            alone = SoloProfile(
                family, "V100", width, 100.0, power_w=(49 + 20 * busy**0.5) * width, utilisation_pct=busy,
                memory_peak_mib=4000, checkpoints=draw.random() < 0.5,
            )  # fmt: skip
            solo[alone.key] = alone
        for _ in range(60):
            pair = family_set(draw.sample(PROFILED, 2))
            slow = dict.fromkeys(pair, draw.uniform(1.01, 1.3))
            measured = CoallocationProfile(pair, "V100", width, slow, 150.0 * width, draw.uniform(30, 95))
            shared[measured.key] = measured
    return ProfileBook(solo, shared)


@dataclass(frozen=True)
class Measured:
    """Sorted CPU times in ms, and the launches and decisions of the last cycle."""

    times_ms: list[float]
    launches: int
    decisions: int


def measure(make: Callable[[], ClusterSnapshot], rounds: int, *, warm: bool = True) -> Measured:
    """Return what ``rounds`` warm cycles in a row took, or cold ones on the same state."""
    draw = random.Random(2)  # noqa: S311  # a state to measure with, no secret
    # What this program has imported is no part of a cycle: its garbage collections shall not look at it.
    gc.collect()
    gc.freeze()
    state = make()
    waiting = len(state.waiting)
    ordering = make_ordering("fifo")
    policy = make_policy(state.pool.settings)
    plan = run_cycle(policy, ordering, state) if warm else None
    times_ms = []
    for number in range(rounds):
        if plan is None or not warm:
            policy = make_policy(state.pool.settings)
        else:
            state = _moved_on(state, plan, waiting, f"n{number:03d}", draw)
        begin = time.process_time()
        plan = run_cycle(policy, ordering, state)
        times_ms.append((time.process_time() - begin) * 1000)
    return Measured(sorted(times_ms), len(_launches(plan)), len(plan.decisions) if plan else 0)


def _launches(plan: Plan | None) -> list[Launch]:
    return [step for step in plan.instructions if isinstance(step, Launch)] if plan else []


def _moved_on(
    state: ClusterSnapshot, plan: Plan, waiting: int, prefix: str, draw: random.Random
) -> ClusterSnapshot:
    """Return the state 5 s later: launches carried out, two sets ended, ``waiting`` jobs in the queue."""
    for launch in _launches(plan):
        state = state.with_launch(launch.job, launch.placement)
    started = {launch.job.job_id for launch in _launches(plan)}
    nodes = dict(state.nodes)
    for name in draw.sample(sorted(nodes), 2):
        node = nodes[name]
        if node.sets:
            nodes[name] = replace(node, sets=node.sets[1:], free=(*node.free, *node.sets[0].gpus))
    left = [job for job in state.waiting if job.job_id not in started]
    new = [_job(f"{prefix}-{number:05d}", draw) for number in range(waiting - len(left))]
    return replace(state, nodes=nodes, waiting=(*left, *new), now_s=state.now_s + 5)


def main(argv: list[str] | None = None) -> None:
    """Print median and 99th percentile of each case."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=50, help="cycles for each case (default 50)")
    rounds = parser.parse_args(argv).rounds
    cases = [
        ("1,000 waiting x 512 GPUs", 1_000, 512, False, "aim: median < 50 ms, p99 < 100 ms"),
        ("1,000 waiting x 512 GPUs, empty", 1_000, 512, True, ""),
        ("10,000 waiting x 4,096 GPUs", 10_000, 4_096, False, "aim: median < 500 ms"),
        ("10,000 waiting x 4,096 GPUs, empty", 10_000, 4_096, True, ""),
    ]
    print("one admission cycle (policy eaco, ordering fifo)")  # noqa: T201  # the product of a benchmark
    for name, waiting, gpus, empty, aim in cases:
        make = partial(make_state, waiting, gpus, empty=empty)
        for warm in (True, False):
            done = measure(make, max(3, rounds * 1000 // waiting), warm=warm)
            p99 = done.times_ms[min(len(done.times_ms) - 1, int(len(done.times_ms) * 0.99))]
            print(  # noqa: T201  # the product of a benchmark
                f"  {name:36} {'warm' if warm else 'cold'} median {statistics.median(done.times_ms):7.1f} ms"
                f"  p99 {p99:7.1f} ms  ({done.launches} launched, {done.decisions} decisions)"
                f" {aim if warm else ''}"
            )


if __name__ == "__main__":
    main()
