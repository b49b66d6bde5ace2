"""The contract of the ledger port: what it shows, nodes and GPUs."""

from __future__ import annotations

from dataclasses import replace

import pytest

from airflow_provider_eaco.core.lifecycle import JobPhase
from airflow_provider_eaco.core.model.errors import LeaseConflictError
from airflow_provider_eaco.core.model.gpu import Gpu, GpuHealth, Node
from airflow_provider_eaco.core.model.instruction import Launch
from airflow_provider_eaco.core.model.job import GpuRequest, Job, OrderKey, Share
from airflow_provider_eaco.core.model.placement import LeaseState
from airflow_provider_eaco.core.ports import Ledger
from tests.contract.ledger_fixtures import OWNER, LedgerFixtures
from tests.contract.parts import START_S, ManualClock, grant, make_job, make_node, place, record_of


class InventoryContract(LedgerFixtures):
    """What holds for the view and the inventory of every :class:`Ledger`."""

    def test_an_empty_ledger_shows_nothing(self, ledger: Ledger, clock: ManualClock) -> None:
        """A view of nothing is empty and carries the clock's instant."""
        view = ledger.view()
        assert (view.nodes, view.jobs, view.leases, dict(view.gpu_versions)) == ((), (), (), {})
        assert view.now_s == clock.now_s()

    def test_a_job_comes_back_as_it_was_stored(self, ledger: Ledger) -> None:
        """Every field of a job and its request survives the store."""
        request = GpuRequest(
            gpus=8,
            family="vgg16-b32",
            gpu_memory_mib=9000,
            gpu_models=("A100", "V100"),
            host_memory_mib=4000,
            max_stretch=None,
            deadline_s=3600.5,
            share=Share.ALWAYS,
        )
        job = Job(
            "j", request, "team-a", START_S - 5, OrderKey(1.5, "d", "t", 7, "j"), priority=-3, pool_slots=2
        )
        ledger.add_waiting(job, OWNER)
        record = record_of(ledger, "j")
        assert record is not None
        assert (record.job, record.phase, record.owner, record.process) == (
            job,
            JobPhase.WAITING,
            OWNER,
            None,
        )

    def test_nodes_come_back_as_they_were_saved(self, ledger: Ledger, clock: ManualClock) -> None:
        """Every field of a node and its GPUs survives; unknown stays unknown; the time is the store's."""
        gpus = (
            Gpu("GPU-b", "n2", 0, "A100", 40960, memory_reserved_mib=450),
            Gpu("GPU-a", "n2", 1, "A100", None, health=GpuHealth.UNKNOWN),
        )
        node = Node("n2", gpus, host_memory_mib=None, time_scale=600.0)
        ledger.save_nodes([node])
        assert ledger.view().nodes == (replace(node, last_report_s=clock.now_s()),)
        assert set(ledger.view().gpu_versions) == {"GPU-a", "GPU-b"}

    def test_saving_a_node_again_replaces_it(self, ledger: Ledger, clock: ManualClock) -> None:
        """A later report replaces the earlier one, with its own time."""
        ledger.save_nodes([make_node(gpus=2)])
        clock.advance(30)
        sick = make_node(gpus=2)
        sick = replace(sick, gpus=(replace(sick.gpus[0], health=GpuHealth.UNHEALTHY), sick.gpus[1]))
        ledger.save_nodes([sick])
        (node,) = ledger.view().nodes
        assert node.gpus[0].health is GpuHealth.UNHEALTHY
        assert node.last_report_s == START_S + 30

    def test_a_gpu_missing_from_the_newest_report_is_not_offered(self, ledger: Ledger) -> None:
        """A GPU that its node no longer reports is gone, or at least no longer healthy."""
        ledger.save_nodes([make_node(gpus=2)])
        ledger.save_nodes([make_node(gpus=1)])
        (node,) = ledger.view().nodes
        assert [gpu.uuid for gpu in node.gpus if gpu.health is GpuHealth.HEALTHY] == ["GPU-n1-0"]

    def test_a_held_gpu_missing_from_the_newest_report_stays_with_its_lease(self, filled: Ledger) -> None:
        """While somebody holds it, it is listed and not healthy; its lease ends as any other."""
        lease = grant(filled, "j1", place(3))
        filled.save_nodes([make_node(gpus=3)])
        (node,) = filled.view().nodes
        assert [(gpu.uuid, gpu.health is GpuHealth.HEALTHY) for gpu in node.gpus if gpu.index == 3] == [
            ("GPU-n1-3", False)
        ]
        assert filled.release(lease.token, JobPhase.WAITING)
        filled.save_nodes([make_node(gpus=3)])
        (node,) = filled.view().nodes
        assert "GPU-n1-3" not in [gpu.uuid for gpu in node.gpus if gpu.health is GpuHealth.HEALTHY]

    def test_a_report_changes_no_counter(self, filled: Ledger) -> None:
        """A heartbeat of the inventory never makes a grant conflict."""
        before = filled.view().gpu_versions
        filled.save_nodes([make_node()])
        assert dict(filled.view().gpu_versions) == dict(before)

    def test_a_report_keeps_drain_marks(self, filled: Ledger) -> None:
        """A drain mark set by a user outlives the node's own reports, until it is taken away."""
        assert filled.set_draining("n1", True)
        filled.save_nodes([make_node()])
        assert filled.view().nodes[0].draining
        assert filled.set_draining("n1", False)
        filled.save_nodes([make_node()])
        assert not filled.view().nodes[0].draining

    def test_draining_an_unknown_node_says_so(self, ledger: Ledger) -> None:
        """There is nothing to drain where no node is."""
        assert not ledger.set_draining("nowhere", True)

    def test_forgetting_a_free_node_removes_it(self, filled: Ledger) -> None:
        """A node without a lease is gone at once, its GPUs with it; forgetting again changes nothing."""
        filled.forget_node("n1")
        filled.forget_node("n1")
        assert filled.view().nodes == ()
        assert dict(filled.view().gpu_versions) == {}

    def test_forgetting_a_held_node_waits_for_its_leases(self, filled: Ledger) -> None:
        """A node with leases becomes unavailable and goes when the last one ends."""
        first, second = grant(filled, "j1", place(0)), grant(filled, "j2", place(1))
        filled.forget_node("n1")
        (node,) = filled.view().nodes
        assert not node.available
        filled.release(first.token, JobPhase.WAITING)
        assert [node.name for node in filled.view().nodes] == ["n1"]
        filled.release(second.token, JobPhase.WAITING)
        assert filled.view().nodes == ()

    def test_a_forgotten_node_that_reports_again_is_back(self, filled: Ledger) -> None:
        """A report takes the forgetting back."""
        lease = grant(filled, "j1", place(0))
        filled.forget_node("n1")
        filled.save_nodes([make_node()])
        filled.release(lease.token, JobPhase.WAITING)
        (node,) = filled.view().nodes
        assert node.available

    def test_a_node_that_was_forgotten_and_came_back_refuses_old_views(self, filled: Ledger) -> None:
        """Counters are not reset to a value that an older view may still hold after a grant in between."""
        old = filled.view()
        lease = grant(filled, "j1", place(0))
        filled.release(lease.token, JobPhase.WAITING)
        filled.forget_node("n1")
        filled.save_nodes([make_node()])
        with pytest.raises(LeaseConflictError):
            filled.grant(Launch(make_job("j2"), place(0), ()), LeaseState.EXCLUSIVE, old.gpu_versions, OWNER)
