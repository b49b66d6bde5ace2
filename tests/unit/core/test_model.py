"""The values that everything else is told in: reasons, profiles, phases, placements."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

from airflow_provider_eaco.core.lifecycle import FINAL_PHASES, JobPhase, may_become, phases_before
from airflow_provider_eaco.core.model.decision import Finding, Reason, hold
from airflow_provider_eaco.core.model.errors import InvalidProfileError
from airflow_provider_eaco.core.model.placement import Placement
from airflow_provider_eaco.core.model.profile import CoallocationProfile, SoloProfile, family_set
from tests.builders import make_job, make_node, make_snapshot


def test_every_reason_is_found_by_its_code_and_has_a_rank_of_its_own() -> None:
    """Codes are stored and read back; ranks follow the order of severity."""
    for rank, reason in enumerate(Reason):
        assert Reason.from_code(reason.code) is reason
        assert reason.severity == rank
        assert pickle.loads(pickle.dumps(reason)) is reason
        assert {reason: 1}[Reason.from_code(reason.code)] == 1
    with pytest.raises(ValueError, match="unknown reason code 'bored'"):
        Reason.from_code("bored")


def test_a_hold_keeps_the_first_finding_of_each_reason_most_severe_first() -> None:
    """Findings come out sorted, each reason once, and the first is the reason shown."""
    waiting, again = Finding(Reason.WAITING_FOR_GPU, {"wanted": 1}), Finding(Reason.WAITING_FOR_GPU)
    held = hold(waiting, Finding(Reason.ON_HOLD), again)
    assert held.findings == (Finding(Reason.ON_HOLD), waiting)
    assert held.reason is Reason.ON_HOLD


def test_a_finding_with_unknown_numbers_still_reads() -> None:
    """An unknown number is shown as unknown, whether its field has a numeric format or not."""
    assert Finding(Reason.DRAINING, {}).text == "every fitting node is draining: unknown"
    shown = Finding(Reason.NO_ENERGY_GAIN, {"shared_j": None, "alone_j": None}).text
    assert shown == "a unit would take unknown J shared, unknown J alone"


def test_a_finding_of_somebody_elses_policy_still_reads() -> None:
    """Words where the sentence has a number are shown by their names."""
    assert (
        Finding(Reason.NO_ENERGY_GAIN, {"shared_j": "much", "alone_j": 1}).text == "alone_j=1, shared_j=much"
    )


BAD_PROFILES: dict[str, dict[str, Any]] = {
    "one family": {"families": ("A",), "slowdowns": {"A": 1.0}},
    "not sorted": {"families": ("B", "A"), "slowdowns": {"A": 1.0, "B": 1.0}},
    "slowdown missing": {"families": ("A", "B"), "slowdowns": {"A": 1.0}},
    "slowdown zero": {"families": ("A", "B"), "slowdowns": {"A": 1.0, "B": 0.0}},
    "slowdown nan": {"families": ("A", "B"), "slowdowns": {"A": 1.0, "B": float("nan")}},
}


@pytest.mark.parametrize("case", BAD_PROFILES)
def test_a_contradictory_set_profile_is_refused(case: str) -> None:
    """Two or more sorted families, and a positive slowdown for each."""
    with pytest.raises(InvalidProfileError, match="co-allocation"):
        CoallocationProfile(gpu_model="T4", gpu_count=1, **BAD_PROFILES[case])


@pytest.mark.parametrize("name", ["unit_s", "power_w", "memory_peak_mib"])
@pytest.mark.parametrize("value", [0, -1, float("nan")])
def test_a_solo_profile_without_a_usable_number_is_refused(name: str, value: float) -> None:
    """Zero, negative and not-a-number are not measurements; unknown is ``None``."""
    with pytest.raises(InvalidProfileError, match=name):
        SoloProfile("A", "T4", 1, **{name: value})


def test_a_multiset_of_families_has_one_key() -> None:
    """{b, a} and {a, b} are the same set, {a, a} is another."""
    assert family_set(("b", "a")) == family_set(["a", "b"]) != family_set(("a", "a"))


def test_final_phases_are_left_only_by_being_queued_again() -> None:
    """A final job can only wait again; phases_before is may_become turned round."""
    for present in JobPhase:
        assert may_become(present, present)
        for wanted in JobPhase:
            if wanted is not present:
                assert may_become(present, wanted) == (present in phases_before(wanted))
                assert (present in FINAL_PHASES and may_become(present, wanted)) <= (
                    wanted is JobPhase.WAITING
                )
    assert not may_become(JobPhase.WAITING, JobPhase.RUNNING)


def test_a_launch_on_gpus_that_are_neither_free_nor_one_set_is_refused() -> None:
    """Residents share identical sets: a partial overlap cannot even be tried."""
    snapshot = make_snapshot(make_node())
    uuids = tuple(gpu.uuid for gpu in snapshot.nodes["node-a"].free)
    first = snapshot.with_launch(make_job("a", gpus=4), Placement("node-a", uuids[:4]))
    with pytest.raises(ValueError, match="neither an existing set nor free"):
        first.with_launch(make_job("b", gpus=4), Placement("node-a", uuids[2:6]))


def test_a_launch_of_a_job_from_an_unknown_airflow_pool_counts_nowhere() -> None:
    """Slots are counted for Airflow pools that exist."""
    snapshot = make_snapshot(make_node())
    uuids = tuple(gpu.uuid for gpu in snapshot.nodes["node-a"].free)
    after = snapshot.with_launch(make_job("a", pool="gone"), Placement("node-a", uuids))
    assert after.pool is snapshot.pool


def test_a_mapped_task_shows_its_index() -> None:
    """People see DAG, task and map index."""
    assert make_job("x", dag_id="d", task_id="t").label == "d.t"
    assert make_job("x", dag_id="d", task_id="t", map_index=3).label == "d.t[3]"
