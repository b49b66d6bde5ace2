"""Who is looked at first, and how policies and orderings are found by name."""

from __future__ import annotations

import itertools
import random
from importlib.metadata import EntryPoint

import pytest

from airflow_provider_eaco.core.model.errors import InvalidSettingError
from airflow_provider_eaco.core.model.pool import PoolMode, PoolSettings
from airflow_provider_eaco.core.policy import registry
from airflow_provider_eaco.core.policy.eaco import EacoPolicy
from airflow_provider_eaco.core.policy.exclusive import ExclusivePolicy
from airflow_provider_eaco.core.policy.ordering import FifoOrdering, ShortestFirstOrdering
from tests.builders import make_book, make_job, make_node, make_progress, make_snapshot, make_solo


def test_c04_equal_weight_runs_oldest_first_over_100_shuffles() -> None:
    """Equal priorities are ordered by run date, DAG, task and map index, whatever order they arrive in."""
    draw = random.Random(4)
    keys = itertools.product((1.0, 2.0, 3.0), "ab", "st", (-1, 2, 10))
    # Their ids say nothing of the order, as Airflow's do not.
    jobs = [
        make_job(draw.randbytes(8).hex(), run_after_s=run, dag_id=dag, task_id=task, map_index=index)
        for run, dag, task, index in keys
    ]
    for _ in range(100):
        shuffled = draw.sample(jobs, len(jobs))
        assert list(FifoOrdering().order(shuffled, make_snapshot(make_node()))) == jobs


def test_priority_comes_before_age() -> None:
    """A higher priority is looked at first even if its run is younger."""
    old, urgent = make_job("old", run_after_s=1), make_job("urgent", run_after_s=9, priority=3)
    for ordering in (FifoOrdering(), ShortestFirstOrdering()):
        assert ordering.order([old, urgent], make_snapshot(make_node())) == (urgent, old)


def test_sjf_takes_the_least_remaining_work_first_and_unknown_last() -> None:
    """Shortest first counts what is left; jobs without a known time keep the fifo order behind."""
    book = make_book(make_solo("A", units_total=10), make_solo("B", "H100", unit_s=1.0, units_total=10))
    jobs = [
        make_job("unknown-2", "C", 1, run_after_s=2),
        make_job("unknown-1", "C", 1, run_after_s=1),
        make_job("long", "A", 1, run_after_s=1),
        make_job("half-done", "A", 1, run_after_s=5, progress=make_progress(done=6, total=10)),
        make_job("wrong-model", "B", 1, gpu_models=("H100", "T4"), run_after_s=3),
    ]
    snapshot = make_snapshot(make_node(model="T4"), profiles=book)
    ranked = ShortestFirstOrdering().order(jobs, snapshot)
    assert [job.job_id for job in ranked] == ["half-done", "long", "unknown-1", "unknown-2", "wrong-model"]


def test_policies_and_orderings_are_made_by_name() -> None:
    """The built-in names give the built-in classes; mode exclusive never shares."""
    assert type(registry.make_policy(PoolSettings(policy="eaco"))) is EacoPolicy
    assert type(registry.make_policy(PoolSettings(policy="exclusive"))) is ExclusivePolicy
    exclusive = PoolSettings(policy="eaco", mode=PoolMode.EXCLUSIVE)
    assert type(registry.make_policy(exclusive)) is ExclusivePolicy
    assert type(registry.make_ordering("fifo")) is FifoOrdering
    assert type(registry.make_ordering("sjf")) is ShortestFirstOrdering


def test_an_unknown_name_is_refused_with_what_is_allowed() -> None:
    """The error names the setting and every allowed name."""
    with pytest.raises(InvalidSettingError, match=r"'gandiwa' is not known; allowed are eaco, exclusive"):
        registry.make_policy(PoolSettings(policy="gandiwa"))
    with pytest.raises(InvalidSettingError, match=r"\[eaco\] pools, ordering: .* allowed are backfill, edf"):
        registry.make_ordering("lifo")


def test_a_user_package_can_offer_a_policy(monkeypatch: pytest.MonkeyPatch) -> None:
    """An entry point of the group is loaded by its name; a broken one says what could not be loaded."""
    target = "airflow_provider_eaco.core.policy.exclusive"
    offered = [
        EntryPoint("mine", f"{target}:ExclusivePolicy", registry.POLICY_GROUP),
        EntryPoint("broken", f"{target}:Missing", registry.POLICY_GROUP),
    ]
    monkeypatch.setattr(registry, "entry_points", lambda group: offered)
    assert type(registry.make_policy(PoolSettings(policy="mine"))) is ExclusivePolicy
    with pytest.raises(InvalidSettingError, match=r"'broken' could not be loaded from .*:Missing"):
        registry.make_policy(PoolSettings(policy="broken"))
    with pytest.raises(InvalidSettingError, match=r"allowed are broken, eaco, .*, mine"):
        registry.make_policy(PoolSettings(policy="other"))
