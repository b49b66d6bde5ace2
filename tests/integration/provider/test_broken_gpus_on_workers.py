"""GPUs and drivers that fail on a machine with a worker, as the scheduler and its tasks meet them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from airflow_provider_eaco.core.model.pool import PowerLimits
from airflow_provider_eaco.store import schema
from airflow_provider_eaco.store.decisions import decisions_of, events_of
from tests.integration.provider.limit_site import Site

NVML_IS_GONE = {"nvmlDeviceGetPowerUsage": 18, "nvmlInitWithFlags": 18}


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    made = Site(tmp_path, monkeypatch)
    made.rig = made.start(power_limits=PowerLimits.OFF)
    yield made
    made.close()


def reasons(site: Site) -> set[str]:
    """Return the reasons that stand."""
    with site.database.reading() as connection:
        standing = decisions_of(connection, schema.decision.c.ended_at.is_(None))
    return {each.decision.reason.code for each in standing if each.decision.reason is not None}


def story(site: Site, job_id: str) -> dict[str, str]:
    """Return what is told of the job, by event."""
    with site.database.reading() as connection:
        return {event.event: event.text for event in events_of(connection, schema.event.c.job_id == job_id)}


def let_pass(site: Site, reports: int = 3) -> None:
    """Let the node tell so often, and the scheduler plan after each."""
    for _ in range(reports):
        site.beat(site.node.interval_s)


def test_c49_a_node_whose_nvml_is_gone_takes_nothing_new_and_goes_on(site: Site) -> None:
    """Its task runs on and the next one waits, with the reason, until NVML works again."""
    site.queue("j1")
    site.until(lambda: site.rig.phase("j1") == "running")
    site.machine.errors = dict(NVML_IS_GONE)
    site.machine.write()
    let_pass(site)
    site.queue("j2")
    let_pass(site)
    assert (site.rig.phase("j1"), site.node.processes.killed) == ("running", [])
    assert (site.rig.phase("j2"), reasons(site)) == ("waiting", {"gpu_unhealthy"})
    site.machine.errors = {}
    site.machine.write()
    site.until(lambda: site.rig.phase("j2") == "running")
    assert site.rig.phase("j1") == "running"


@pytest.mark.parametrize("xids", [(79,), ()], ids=["Xid 79", "no Xid"])
def test_c50_what_ran_on_a_node_s_lost_gpu_goes_on_elsewhere(xids: tuple[int, ...], site: Site) -> None:
    """The task fails by itself, its story says that the GPU failed, and its retry starts on the other one.
    The lost one takes work once it answers again, without a restart of anything.
    """
    site.queue("j1")
    site.until(lambda: site.rig.phase("j1") == "running")
    lost = site.index_of("j1")
    site.machine.xids = [(lost, xid) for xid in xids]
    site.machine.set(lost, lost=1)
    let_pass(site)
    assert (site.rig.phase("j1"), site.node.processes.killed) == ("running", [])
    site.rig.become("j1", "up_for_retry")
    site.node.processes.end("j1", 1)
    site.until(lambda: site.rig.phase("j1") == "failed")
    assert f"; {site.uuids[lost]} is out of order" in story(site, "j1")["released"]
    site.queue("retry")
    site.until(lambda: site.rig.phase("retry") == "running")
    assert site.index_of("retry") != lost
    site.queue("next")
    let_pass(site)
    assert site.rig.phase("next") == "waiting"
    site.machine.set(lost, lost=None)
    site.until(lambda: site.rig.phase("next") == "running")
    assert site.index_of("next") == lost
