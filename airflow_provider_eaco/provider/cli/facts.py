"""What the commands show, read at one instant: our tables, Airflow's pools, and the configuration."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from airflow_provider_eaco.core.model.gpu import GpuReading
from airflow_provider_eaco.core.model.profile import ProfileBook
from airflow_provider_eaco.core.model.snapshot import PoolState
from airflow_provider_eaco.core.ports import LedgerView
from airflow_provider_eaco.engine.snapshots import SnapshotBuilder
from airflow_provider_eaco.provider.energy_text import METHOD_TEXTS
from airflow_provider_eaco.provider.explain import Event, Explanation, Place, StandingDecision, explain
from airflow_provider_eaco.provider.shown import UNKNOWN, shown_energy
from airflow_provider_eaco.provider.wiring import open_store, present_pools

if TYPE_CHECKING:
    from airflow_provider_eaco.store.energy import JobEnergy
    from airflow_provider_eaco.store.read_model import JobStory, QueueEntry


@dataclass(frozen=True, slots=True)
class Facts:
    """Everything of one instant. The nodes of ``view`` are available as the planner judges it."""

    view: LedgerView
    states: tuple[PoolState, ...]
    queue: tuple[QueueEntry, ...]
    readings: Mapping[str, GpuReading]
    energy_j: float | None
    planner_expires_s: float | None = None


def read_facts() -> Facts:
    """Return what is stored now.

    :raises StoreUnavailableError: if our tables cannot be read.
    :raises InvalidSettingError: if ``[eaco]`` cannot be read.
    """
    overview = open_store().reads.overview()
    states = tuple(present_pools())
    return Facts(
        view=_as_judged(overview.view, states),
        states=states,
        queue=overview.queue,
        readings=overview.readings,
        energy_j=overview.energy_j,
        planner_expires_s=None if overview.planner is None else overview.planner.expires_s,
    )


def explain_waiting(entry: QueueEntry, now_s: float) -> Explanation:
    """Return the explanation of a waiting job."""
    return explain(entry.record, _standing(entry), _place(entry), now_s)


def explain_story(story: JobStory, now_s: float) -> Explanation:
    """Return the explanation of any job, with all that has happened to it."""
    entry = story.entry
    last = story.decisions[-1] if story.decisions else None
    standing = _standing(entry) if entry is not None else None
    if standing is None and entry is None and last is not None:
        standing = StandingDecision(last.decision, last.decided_s)
    return explain(
        story.record,
        standing,
        None if entry is None else _place(entry),
        now_s,
        story=[Event(event.at_s, event.event, event.text) for event in story.events],
        energy=UNKNOWN if story.energy is None else _energy(story.energy),
    )


def _energy(energy: JobEnergy) -> str:
    text = shown_energy(energy.energy_j, partial=energy.partial)
    known = [text for method, text in METHOD_TEXTS.items() if method in energy.methods]
    return f"{text} ({', '.join(known)})" if known and energy.energy_j is not None else text


def _standing(entry: QueueEntry) -> StandingDecision | None:
    return None if entry.decision is None else StandingDecision(entry.decision.decision, entry.since_s)


def _place(entry: QueueEntry) -> Place | None:
    if entry.pool is None or entry.position is None or entry.length is None:
        return None
    return Place(entry.position, entry.length, entry.pool)


def _as_judged(view: LedgerView, states: Sequence[PoolState]) -> LedgerView:
    """Return the view whose silent nodes are unavailable, as the planner judges them."""
    snapshots = SnapshotBuilder().build(view, states, ProfileBook(), {})
    judged = {name: state.node for snapshot in snapshots.values() for name, state in snapshot.nodes.items()}
    return replace(view, nodes=tuple(judged.get(node.name, node) for node in view.nodes))
