"""What the commands show, read at one instant: our tables, Airflow's pools, and the configuration."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from airflow_provider_eaco.core.energy.records import JobEnergy
from airflow_provider_eaco.core.model.errors import EacoError
from airflow_provider_eaco.core.model.gpu import GpuHealth, GpuReading, Node
from airflow_provider_eaco.core.model.node_power import NodePowerState
from airflow_provider_eaco.core.model.profile import ProfileBook
from airflow_provider_eaco.core.model.snapshot import PoolState
from airflow_provider_eaco.core.ports import LedgerView
from airflow_provider_eaco.provider.energy_record import EnergyRecord, alone_unit_s, record_of_job, stretch_of
from airflow_provider_eaco.provider.energy_text import energy_text
from airflow_provider_eaco.provider.explain import Event, Explanation, Place, StandingDecision, explain
from airflow_provider_eaco.provider.settings import load_settings
from airflow_provider_eaco.provider.shown import UNKNOWN
from airflow_provider_eaco.provider.whatif.expected import ExpectedStart, Waiting, expected_starts
from airflow_provider_eaco.provider.whatif.present import judged
from airflow_provider_eaco.provider.wiring import Store, open_store, present_pools

if TYPE_CHECKING:
    from airflow_provider_eaco.store.decisions import StoredEvent
    from airflow_provider_eaco.store.read_model import JobStory, QueueEntry


@dataclass(frozen=True, slots=True)
class Facts:
    """Everything of one instant. The nodes of ``view`` are available as the planner judges it; of those that
    do not report neither health nor a reading is known. ``sleeping`` are those that sleep or wake by our
    will, and that somebody here would wake.
    """

    view: LedgerView
    states: tuple[PoolState, ...]
    queue: tuple[QueueEntry, ...]
    readings: Mapping[str, GpuReading]
    energy_j: float | None
    energy_of: Mapping[str, JobEnergy]
    profiles: Callable[[], ProfileBook]
    limits: Mapping[str, StoredEvent]
    sleeping: Mapping[str, NodePowerState]


def read_facts(store: Store | None = None) -> Facts:
    """Return what is stored now.

    :param store: one that has read profiles already, for servers.

    :raises StoreUnavailableError: if our tables cannot be read.
    :raises InvalidSettingError: if ``[eaco]`` cannot be read.
    """
    store = store or open_store()
    overview = store.reads.overview()
    settings = load_settings()
    states = tuple(present_pools(settings))
    may_sleep = {each.node for each in settings.node_sleep}
    view, timeout_s = overview.view, settings.node_timeout_s
    silent = {node.name for node in view.nodes if not _reports(node, view.now_s, timeout_s)}
    unseen = {gpu.uuid for node in view.nodes if node.name in silent for gpu in node.gpus}
    return Facts(
        view=_without_health(judged(view, timeout_s), silent),
        states=states,
        queue=overview.queue,
        readings={uuid: each for uuid, each in overview.readings.items() if uuid not in unseen},
        energy_j=overview.energy_j,
        energy_of=overview.energy_of,
        profiles=store.profiles.book,
        limits=overview.limits,
        sleeping={name: state for name, state in store.node_sleep.states().items() if name in may_sleep},
    )


def _reports(node: Node, now_s: float, timeout_s: float) -> bool:
    return node.available if node.last_report_s is None else now_s - node.last_report_s <= timeout_s


def _without_health(view: LedgerView, silent: Collection[str]) -> LedgerView:
    """Return the view in which nobody knows how the GPUs of these nodes are."""

    def of(node: Node) -> Node:
        if node.name not in silent:
            return node
        return replace(node, gpus=tuple(replace(gpu, health=GpuHealth.UNKNOWN) for gpu in node.gpus))

    return replace(view, nodes=tuple(of(node) for node in view.nodes), kept_index=None)


def starts_of(facts: Facts) -> dict[str, ExpectedStart]:
    """Return by job id when it is expected to start; one whose start nobody can tell is missing.

    :raises StoreUnavailableError: if profiles cannot be read.
    :raises InvalidSettingError: if a pool's ordering cannot be had.
    """
    queue = [
        Waiting(
            entry.record.job,
            entry.pool,
            frozenset(finding.reason for finding in entry.decision.decision.findings),
        )
        for entry in facts.queue
        if entry.pool is not None and entry.decision is not None
    ]
    if not queue:
        return {}
    return expected_starts(facts.view, facts.states, facts.profiles(), facts.readings, queue)


def explain_waiting(entry: QueueEntry, now_s: float) -> Explanation:
    """Return the explanation of a waiting job."""
    return explain(entry.record, _standing(entry), _place(entry), now_s)


def explain_story(
    story: JobStory, now_s: float, nodes: Sequence[Node] = (), book: ProfileBook | None = None
) -> Explanation:
    """Return the explanation of any job, with all that has happened to it.

    :param nodes: with ``book`` they tell how long a unit takes alone of a job that never was alone itself.
    """
    entry = story.entry
    last = story.decisions[-1] if story.decisions else None
    standing = _standing(entry) if entry is not None else None
    if standing is None and entry is None and last is not None:
        standing = StandingDecision(last.decision, last.decided_s)
    alone_s = None
    if story.leases and book is not None:
        alone_s = alone_unit_s(story.record, story.leases[-1], nodes, book)
    record = energy_record(story, alone_s)
    return explain(
        story.record,
        standing,
        None if entry is None else _place(entry),
        now_s,
        story=[Event(event.at_s, event.event, event.text) for event in story.events],
        energy=UNKNOWN if record is None else energy_text(record),
        energy_record=None if record is None else record.as_json(),
    )


def energy_record(story: JobStory, alone_s: float | None) -> EnergyRecord | None:
    """Return the energy record of a job as it is stored now, ``None`` if it never had one.

    :param alone_s: unit time alone of its family, for a job that never was alone itself.
    """
    if story.energy is None:
        return None
    try:
        factor = load_settings().carbon_g_per_kwh
    except EacoError:  # what is stored can be shown all the same
        factor = None
    return record_of_job(story.energy, stretch_of(story.record.job.progress, alone_s), factor)


def _standing(entry: QueueEntry) -> StandingDecision | None:
    return None if entry.decision is None else StandingDecision(entry.decision.decision, entry.since_s)


def _place(entry: QueueEntry) -> Place | None:
    if entry.pool is None or entry.position is None or entry.length is None:
        return None
    return Place(entry.position, entry.length, entry.pool)
