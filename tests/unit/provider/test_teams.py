"""The team of a job: what its GPU pool's fair_share goes by, else the bundle."""

from __future__ import annotations

from dataclasses import replace

import pytest

from airflow_provider_eaco.core.model.pool import FairShare, PoolSettings, TeamSource
from airflow_provider_eaco.provider.settings import EacoSettings
from airflow_provider_eaco.provider.teams import team_shown
from tests.builders import make_job

FAIR = ("fair_share",)


@pytest.mark.parametrize(
    ("rules", "by", "wanted"),
    [
        pytest.param((), TeamSource.POOL, "git", id="no rule"),
        pytest.param(("ageing",), TeamSource.DAG, "git", id="settings of a rule that is not there"),
        pytest.param(FAIR, TeamSource.POOL, "vision", id="by pool"),
        pytest.param(FAIR, TeamSource.BUNDLE, "git", id="by bundle"),
        pytest.param(FAIR, TeamSource.DAG, "train", id="by DAG"),
    ],
)
def test_the_rule_of_the_pool_names_the_team(rules: tuple[str, ...], by: TeamSource, wanted: str) -> None:
    """With the rule what it goes by, without it the bundle, whatever else is set."""
    job = replace(make_job("a", "A", 1, dag_id="train"), pool="vision", bundle="git")
    settings = EacoSettings(pools=(PoolSettings("eaco", rules=rules, fair_share=FairShare(by=by)),))
    assert team_shown(job, settings) == wanted


def test_the_job_s_own_gpu_pool_decides() -> None:
    """Of two GPU pools the one that serves the job's Airflow pool says by what."""
    by_dag = PoolSettings("second", rules=FAIR, fair_share=FairShare(by=TeamSource.DAG))
    settings = EacoSettings(pools=(PoolSettings("first"), by_dag))
    job = replace(make_job("a", "A", 1, dag_id="train"), bundle="git")
    assert team_shown(replace(job, pool="second"), settings) == "train"
    assert team_shown(replace(job, pool="first"), settings) == "git"
    assert team_shown(replace(job, pool="default_pool"), settings) == "git"


def test_what_is_not_known_has_no_name() -> None:
    """Without a bundle, or without a pool where the pool is the team, nobody knows."""
    plain = EacoSettings(pools=(PoolSettings("eaco"),))
    by_pool = EacoSettings(pools=(PoolSettings("eaco", rules=FAIR),))
    job = replace(make_job("a", "A", 1), pool="", bundle=None)
    assert team_shown(job, plain) is None
    assert team_shown(job, by_pool) is None
