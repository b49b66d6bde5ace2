"""What has to hold of a run on many machines, by its own notes and by the ledger's history."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from tests.system.machines.site import MAX_RESIDENTS, NODES, Site
from tests.system.rig import Run, check_leases, task_processes


def check_all_trained(run: Run, count: int) -> None:
    """Fail unless every one of its trainings has run to its end, once, with no two of it at a time."""
    began = [note for note in run.started if "began_s" in note]
    ended = {(note["token"], note["pid"]) for note in run.started if "ended_s" in note}
    twice = [token for token, times in Counter(note["token"] for note in began).items() if times > 1]
    assert twice == [], "a lease began twice"
    trained = {note["map_index"] for note in began if (note["token"], note["pid"]) in ended}
    assert trained == set(range(count)), "a training is lost"
    instances = run.rig.airflow.api.task_instances(run.dag_id, run.run_id)
    assert Counter(each["state"] for each in instances) == {"success": count}


def check_untouched(run: Run) -> None:
    """Fail unless every training of the run was begun exactly once, in its first try."""
    began = Counter(note["map_index"] for note in run.started if "began_s" in note)
    assert set(began.values()) == {1}, f"begun again: {began}"
    instances = run.rig.airflow.api.task_instances(run.dag_id, run.run_id)
    assert {each["try_number"] for each in instances} == {1}


def check_one_at_a_time(run: Run) -> None:
    """Fail if two starts of one training were alive at the same time."""
    spans: dict[int, list[tuple[float, float]]] = defaultdict(list)
    ends = {(note["token"], note["pid"]): note["ended_s"] for note in run.started if "ended_s" in note}
    for note in run.started:
        if "began_s" in note:
            end = ends.get((note["token"], note["pid"]), note["began_s"])
            spans[note["map_index"]].append((note["began_s"], end))
    for index, times in spans.items():
        times.sort()
        for (_, first_end), (second_begin, _) in pairwise(times):
            assert first_end <= second_begin, f"training {index} ran twice at a time: {times}"


def check_ledger(site: Site) -> None:
    """Fail if a GPU ever had more residents than it may, or a job two leases at a time."""
    history = site.rig.lease_history()
    check_leases(history)
    events: dict[str, list[tuple[Any, int]]] = defaultdict(list)
    for lease in history:
        for uuid in lease["gpu_uuids"].split(","):
            events[uuid].append((lease["granted_at"], 1))
            if lease["released_at"] is not None:
                events[uuid].append((lease["released_at"], -1))
    for uuid, changes in events.items():
        residents = 0
        for _, change in sorted(changes):
            residents += change
            assert residents <= MAX_RESIDENTS, f"GPU {uuid} was over-admitted"


def wait_quiet(site: Site) -> None:
    """Return when leases = runs on nodes = processes = 0, and all nodes take work again."""
    living = "SELECT token FROM eaco_node_run WHERE state IN ('ordered', 'claimed', 'running')"
    site.wait(
        lambda: not site.rig.leases() and not site.airflow.query(living) and not task_processes(site.airflow),
        "quiet",
    )
    site.wait_nodes()


def latencies_s(site: Site, run: Run) -> list[float]:
    """Return the seconds from each lease to the first line of its training's code, sorted."""
    granted = {str(lease["token"]): lease["granted_at"].timestamp() for lease in site.rig.lease_history()}
    return sorted(note["began_s"] - granted[note["token"]] for note in run.started if "began_s" in note)


def used_nodes(notes: Sequence[dict[str, Any]]) -> set[str]:
    """Return the nodes that the notes name, which have to be of the site."""
    nodes = {note["node"] for note in notes}
    assert nodes <= set(NODES)
    return nodes
