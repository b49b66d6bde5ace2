"""Power limits on a node with a worker: set before its tasks begin, lifted after them, else not counted."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_eaco.core.model.placement import Placement
from airflow_provider_eaco.core.model.pool import PowerLimits
from airflow_provider_eaco.engine.progress import Report, UnitTime
from airflow_provider_eaco.provider.worker_api import NodeApiError
from airflow_provider_eaco.store.node_limits import SqlNodeLimits
from tests.integration.provider.limit_site import SET_TO, Site


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    made = Site(tmp_path, monkeypatch)
    yield made
    made.close()


def test_a_limit_is_set_before_the_task_begins_and_lifted_when_it_has_ended(site: Site) -> None:
    """The node knows it with the start, the next plan sees it, its story tells it; other boards stay."""
    index = site.limited()
    assert site.node.began_at_w == {"j1": 200.0}
    assert site.levels_set() == [(index, 200.0)]
    assert list(site.rig.seen().power_limits_w.values()) == [200.0]
    assert site.stories("j1") == [SET_TO]
    site.end("j1")
    site.until(lambda: site.rig.phase("j1") == "finished")
    site.settle()
    assert site.levels_set() == [(index, 200.0), (index, 300.0)]
    assert not site.rig.seen().power_limits_w


def test_what_a_node_finds_out_of_its_boards_is_told_at_once(site: Site) -> None:
    """The pool does not have to wait for the next report but one."""
    began_s = site.clock.now_s()
    site.until(lambda: site.setting() is PowerLimits.APPLY, step_s=0.01)
    assert site.clock.now_s() - began_s < site.node.interval_s


def test_no_plan_counts_a_level_before_the_node_has_told_that_it_can_be_set(site: Site) -> None:
    """The first plans advise; a task that they have started is limited as soon as one counts it."""
    site.queue("j1")
    site.beat()
    assert site.setting() is PowerLimits.ADVISE
    site.until(lambda: site.levels_set() and site.stories("j1"))
    assert site.stories("j1") == [SET_TO]
    assert site.node.began_at_w == {"j1": 300.0}


def test_a_scheduler_that_has_just_begun_plans_with_what_nodes_have_told_before(site: Site) -> None:
    """Tasks of its very first plan begin under their limits, as with any other scheduler."""
    site.ready()
    site.rig = site.start()
    site.queue("j1")
    site.until(lambda: site.node.began_at_w)
    assert site.node.began_at_w == {"j1": 200.0}


def test_a_node_without_permission_makes_the_pool_advise(site: Site) -> None:
    """Its tasks run at full power, and the cause is in their stories; minutes later the node asks again."""
    site.machine.errors = {"nvmlDeviceSetPowerManagementLimit": 4}
    site.machine.write()
    site.queue("j1")
    site.until(lambda: site.stories("j1"))
    site.settle()
    assert site.rig.phase("j1") == "running"
    assert (site.setting(), site.levels_set()) == (PowerLimits.ADVISE, [])
    (text,) = site.stories("j1")
    assert text.startswith("no limit is set, it is only advised: GPU-")
    assert "no permission to set power limits" in text
    site.machine.errors = {}
    site.machine.write()
    site.clock.advance(700)
    site.ready()
    site.until(site.levels_set)


def test_a_worker_of_an_older_version_makes_the_pool_advise(site: Site) -> None:
    """It starts tasks as it always has, and no figure counts a limit that it would not set."""
    site.node.version = 2
    site.queue("j1")
    site.until(lambda: site.stories("j1"))
    site.settle()
    assert site.rig.phase("j1") == "running"
    assert (site.setting(), site.machine.limits_set()) == (PowerLimits.ADVISE, [])
    assert site.stories("j1") == [
        "no limit is set, it is only advised: " + site.uuids[0]
        + ": the worker of node n1 knows no power limits; bring it up to date"
    ]  # fmt: skip
    site.node.version = 3
    site.until(site.levels_set)


def test_a_level_that_the_board_refuses_keeps_no_task_waiting(site: Site) -> None:
    """It begins at full power, and the pool advises, saying why."""
    site.ready()
    for gpu in site.machine.gpus.values():
        gpu["limit_min_mw"] = 210_000
    site.machine.write()
    site.queue("j1")
    queued_s = site.clock.now_s()
    # A process asks the driver in real time: what it takes counts next to nothing here.
    site.until(lambda: site.node.began_at_w, step_s=0.01)
    assert site.clock.now_s() - queued_s < 10
    site.until(lambda: site.rig.phase("j1") == "running")
    site.settle()
    text = "no limit is set, it is only advised: 200 W is outside the 210 to 300 W that the board takes"
    assert site.stories("j1") == [text]
    assert (site.setting(), site.levels_set()) == (PowerLimits.ADVISE, [])


def test_a_driver_that_hangs_keeps_no_task_waiting_for_long(site: Site) -> None:
    """After some seconds the task begins without its limit."""
    site.ready()
    site.machine.hangs = {"nvmlDeviceGetPowerManagementLimit"}
    site.machine.write()
    site.queue("j1")
    began_s = site.clock.now_s()
    site.until(lambda: site.rig.phase("j1") == "running")
    assert 10 <= site.clock.now_s() - began_s <= 20
    assert site.levels_set() == []
    site.machine.hangs = set()
    site.machine.write()


def test_a_limit_that_may_not_stay_is_lifted_while_the_task_runs(site: Site) -> None:
    """The node learns of it with the answer to its next report."""
    index = site.limited()
    site.rig.limits._permits.refuse("eaco", "somebody says no")
    site.until(lambda: site.machine.limit_w(index) == 300)
    site.settle()
    assert site.rig.phase("j1") == "running"
    assert site.stories("j1") == [
        SET_TO,
        "no limit is set, it is only advised: somebody says no",
        "no longer held to 200 W a board",
    ]


@pytest.mark.parametrize(
    "pool", [{"power_limits": PowerLimits.ADVISE}, {"power_limits": PowerLimits.OFF}], ids=["advise", "off"]
)
def test_a_pool_that_leaves_apply_has_its_limits_lifted(site: Site, pool: dict[str, Any]) -> None:
    """The task runs on, at full power, and nothing is left to be done."""
    index = site.limited()
    site.rig = site.start(**pool)
    site.until(lambda: site.machine.limit_w(index) == 300)
    site.until(lambda: site.rig.limits.is_idle)


def test_a_limit_goes_with_its_task_though_no_scheduler_is_there(site: Site) -> None:
    """The node lifts it by itself as soon as nobody of ours is on the boards."""
    index = site.limited()
    site.is_scheduled = False
    site.node.processes.end("j1")
    site.until(lambda: site.machine.limit_w(index) == 300)


def test_a_worker_that_is_killed_leaves_the_limit_of_a_task_that_runs_on(site: Site) -> None:
    """The next one finds both, and changes nothing."""
    index = site.limited()
    before = site.levels_set()
    site.node.restart()
    site.settle()
    assert (site.levels_set(), site.machine.limit_w(index)) == (before, 200)
    site.end("j1")
    site.until(lambda: site.machine.limit_w(index) == 300)


def test_after_a_crash_the_next_worker_puts_back_what_nobody_needs(site: Site) -> None:
    """It needs no API for it where nothing of ours runs: the machine's book says what the board had."""
    index = site.limited()
    site.node.processes.end("j1")
    site.is_scheduled = False
    site.monkeypatch.setattr(site.node, "report", _away)
    site.node.restart()
    site.until(lambda: site.machine.limit_w(index) == 300)


def test_after_a_crash_nothing_is_lifted_before_it_is_known_whose_it_is(site: Site) -> None:
    """While a task lives whose GPUs only the API can tell, limits stay as they are."""
    index = site.limited()
    site.is_scheduled = False
    with site.monkeypatch.context() as patch:
        patch.setattr(site.node, "report", _away)
        site.node.restart()
        for _ in range(5):
            site.beat()
        assert not site.node.limiter.is_busy
    site.settle()
    assert site.machine.limit_w(index) == 200


def test_a_worker_that_leaves_lifts_its_limits_and_the_next_one_sets_them_again(site: Site) -> None:
    """Tasks run on without it, and nobody would lift them; what it told last is what is so."""
    index = site.limited()
    site.node.agent.stop()
    site.node.agent.run()
    assert site.machine.limit_w(index) == 300
    site.rig.beat()
    assert not site.rig.seen().power_limits_w
    site.node.restart()
    site.until(lambda: site.machine.limit_w(index) == 200)


def test_units_under_a_limit_teach_nothing_about_full_power(site: Site) -> None:
    """A unit of a task on a node under a limit counts for its run and for no profile."""
    site.limited()
    key = next(iter(site.rig.lane.groups)).key
    (lease,) = site.rig.ledger.view().leases
    site.rig.progress[key] = {
        "v": 1, "token": lease.token, "units_done": 1, "units_total": 40, "can_yield": True, "try_number": 1,
        "recent": [[0, 104.0, lease.set_version, lease.set_version]],
    }  # fmt: skip
    site.beat(104)
    record = site.rig.ledger.record_of("j1")
    assert record.observation.limited
    assert (record.observation.units, record.job.progress.solo_units) == (1, 0)


def test_without_limits_no_unit_is_marked_not_even_at_first(site: Site) -> None:
    """A scheduler that nobody has apply limits marks nothing, also before it has looked at anything."""
    site.ready()
    site.rig = site.start(power_limits=PowerLimits.ADVISE)
    report = Report("j1", 1, 1, recent=(UnitTime(0, 100.0, 1, 1),))
    assert site.rig.limits.marked([report]) == [report]
    SqlNodeLimits(site.database).want({Placement("n1", (site.uuids[0],)): 200.0})
    (marked,) = site.start(power_limits=PowerLimits.ADVISE).limits.marked([report])
    assert marked.recent[0].limited


def _away(report: Any) -> Any:
    raise NodeApiError("away", is_refusal=False)
