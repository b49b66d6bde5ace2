"""What `airflow eaco why` says of a job that runs or has run."""

from __future__ import annotations

from airflow_provider_eaco.core.ports import EnergyMethod, EnergyPart
from tests.builders import make_job, make_progress, make_solo
from tests.unit.provider.cli.rig import Cli, Cluster


def test_the_stretch_of_a_job_that_never_was_alone_is_against_its_family(cluster: Cluster, cli: Cli) -> None:
    """Five units in 550 s beside others are a stretch of 1.1 where the family takes 100 s a unit alone."""
    cluster.store.profiles.save_all([make_solo("A")])
    cluster.add_node()
    cluster.add(
        make_job("j", "A", 1, queued_s=cluster.store.clock.now_s(), progress=make_progress(5, 10, 110.0))
    )
    cluster.plan()
    cluster.start("j")
    token = cluster.lease("j").token
    cluster.store.energy.add(EnergyPart("j", token, "n1-gpu00", 7.2e6, 10.0, EnergyMethod.COUNTER))
    assert "; stretch 1.100; " in cli("why", "j").out
