"""What holds for every plan, whatever the case: cases.md I1, I2 and the contracts of the plan."""

from __future__ import annotations

from collections import Counter

from airflow_provider_eaco.core.model.decision import Verdict
from airflow_provider_eaco.core.model.instruction import Launch, Plan
from airflow_provider_eaco.core.model.snapshot import ClusterSnapshot


def check_plan(snapshot: ClusterSnapshot, plan: Plan) -> None:
    """Fail unless the plan keeps every invariant on this snapshot."""
    launches = [instruction for instruction in plan.instructions if isinstance(instruction, Launch)]
    _check_decisions(snapshot, plan, launches)
    after = snapshot
    for launch in launches:
        node = after.nodes[launch.placement.node]
        assert node.node.available
        assert not node.node.draining
        residents = [
            resident.job.job_id
            for held in node.sets
            if held.placement == launch.placement
            for resident in held.residents
        ]
        assert tuple(residents) == launch.co_residents, "co-residents are those who are there"
        after = after.with_launch(launch.job, launch.placement)  # raises on a partial overlap
    for state in after.nodes.values():
        _check_node(state.node.name, after)
    for name, airflow in after.pool.airflow_pools.items():
        if airflow.slots is not None and any(launch.job.pool == name for launch in launches):
            assert airflow.used <= airflow.slots


def _check_decisions(snapshot: ClusterSnapshot, plan: Plan, launches: list[Launch]) -> None:
    waiting = [job.job_id for job in snapshot.waiting]
    assert sorted(plan.order) == sorted(waiting), "every waiting job is ranked once"
    decided = [job_id for made in plan.decisions for job_id in made.job_ids]
    assert sorted(decided) == sorted(waiting), "every waiting job has one decision"
    rank = {job_id: position for position, job_id in enumerate(plan.order)}
    for made in plan.decisions:
        assert list(made.job_ids) == sorted(made.job_ids, key=rank.__getitem__), "jobs stand in queue order"
        decision = made.decision
        admitted = decision.verdict is Verdict.ADMIT
        assert admitted == (decision.placement is not None), "a placement is set exactly when admitted"
        assert admitted == bool(decision.choice)
        assert admitted != bool(decision.findings), "who waits knows why"
        severities = [finding.reason.severity for finding in decision.findings]
        assert severities == sorted(set(severities)), "findings are sorted, each reason once"
        for finding in decision.findings:
            assert "nan" not in finding.text.lower(), finding.text
    admitted_ids = [
        job_id for made in plan.decisions if made.decision.verdict is Verdict.ADMIT for job_id in made.job_ids
    ]
    assert sorted(admitted_ids) == sorted(launch.job.job_id for launch in launches)
    assert max(Counter(decided).values(), default=1) == 1


def _check_node(name: str, after: ClusterSnapshot) -> None:
    state = after.nodes[name]
    margin_mib = after.pool.settings.memory_margin_mib
    owners = Counter(gpu.uuid for held in state.sets for gpu in held.gpus)
    owners.update(gpu.uuid for gpu in state.free)
    assert owners == Counter(gpu.uuid for gpu in state.node.gpus), "every GPU is in one set or free (I2)"
    for held in state.sets:
        assert held.placement.gpu_uuids == tuple(sorted(gpu.uuid for gpu in held.gpus))
        peaks = [resident.job.request.gpu_memory_mib for resident in held.residents]
        known = [peak for peak in peaks if peak is not None]
        for gpu in held.gpus:
            if known and gpu.memory_usable_mib is not None:
                assert sum(known) + margin_mib <= gpu.memory_usable_mib, (
                    "reservations fit with the margin (I1)"
                )
        if len(held.residents) > 1:
            assert all(len(held.gpus) == resident.job.request.gpus for resident in held.residents)
