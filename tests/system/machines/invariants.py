"""What has to hold of a run on many machines, by its own notes and by the ledger's history."""

from __future__ import annotations

import math
import re
import signal
from collections import Counter, defaultdict
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from airflow_provider_eaco.dispatch.claim import claimant
from tests.system.machines.site import (
    GPU_MEMORY_MIB,
    MARGIN_MIB,
    MAX_RESIDENTS,
    NODES,
    SCHEDULERS,
    Site,
)
from tests.system.rig import Run, check_leases, task_processes

# What Airflow's executors write about themselves on SIGUSR2.
_RUNNING = re.compile(r"executor\.running \((\d+)\)")


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
    """Fail if a GPU ever was promised more memory than it has less the margin, or had more residents than it
    may (I1), or if a job had two leases at a time (I2).
    """
    history = site.rig.lease_history()
    check_leases(history)
    memory = site.airflow.query("SELECT job_id, gpu_memory_mib FROM eaco_job")
    memory_mib = {row["job_id"]: row["gpu_memory_mib"] for row in memory}
    events: dict[str, list[tuple[Any, int, int]]] = defaultdict(list)
    for lease in history:
        mib = memory_mib[lease["job_id"]]
        for uuid in lease["gpu_uuids"].split(","):
            events[uuid].append((lease["granted_at"], 1, mib))
            if lease["released_at"] is not None:
                events[uuid].append((lease["released_at"], -1, -mib))
    for uuid, changes in events.items():
        residents = promised_mib = 0
        for _, change, change_mib in sorted(changes):
            residents, promised_mib = residents + change, promised_mib + change_mib
            assert residents <= MAX_RESIDENTS, f"GPU {uuid} was over-admitted"
            assert promised_mib + MARGIN_MIB <= GPU_MEMORY_MIB, (
                f"GPU {uuid}: {promised_mib} MiB were promised"
            )


def living_tokens(site: Site) -> dict[str, list[int]]:
    """Return under which leases the processes of each job live now: all machines of the site are this one."""
    tokens: dict[str, list[int]] = defaultdict(list)
    for lease in site.rig.lease_history():
        if claimant(lease["job_id"], lease["token"]) is not None:
            tokens[lease["job_id"]].append(lease["token"])
    return tokens


def check_owners(site: Site) -> None:
    """Fail if a job lives under two leases at this moment (I2)."""
    twice = {job_id: tokens for job_id, tokens in living_tokens(site).items() if len(tokens) > 1}
    assert twice == {}, "jobs live twice, by their tokens"


def check_numbers(site: Site) -> None:
    """Fail if the page shows a number that is negative, above 100 % or none (I4)."""
    for part in ("summary", "overview", "queue", "energy"):
        _check_number(part, site.airflow.api.shown(f"/eaco/api/v1/{part}"))


def _check_number(where: str, value: object) -> None:
    if isinstance(value, dict):
        for name, each in value.items():
            _check_number(f"{where}.{name}", each)
    elif isinstance(value, list):
        for each in value:
            _check_number(where, each)
    elif isinstance(value, int | float):
        assert math.isfinite(value), f"{where} is {value}"
        assert value >= 0, f"{where} is {value}"
        assert not where.endswith("_pct") or value <= 100, f"{where} is {value}"


def check_beside(site: Site, run: Run) -> None:
    """Fail unless a task without a GPU has run, and both schedulers are at work (I5)."""
    site.wait_end(run)
    instances = run.rig.airflow.api.task_instances(run.dag_id, run.run_id)
    assert {each["state"] for each in instances} == {"success"}
    assert site.airflow.api.call("GET", "/monitor/health")["scheduler"]["status"] == "healthy"


def wait_quiet(site: Site) -> None:
    """Return when leases = runs on nodes = processes = 0 (I3), all nodes take work again, and the executors
    count as many tasks as running as Airflow's database has: none (C22).
    """
    living = "SELECT token, node, state FROM eaco_node_run WHERE state IN ('ordered', 'claimed', 'running')"

    def left() -> dict[str, Any]:
        found = {"leases": site.rig.leases(), "runs": site.airflow.query(living)}
        if any(found.values()):
            return found
        return {"processes": task_processes(site.airflow), "jobs": living_tokens(site)}

    site.wait(lambda: not any(left().values()), lambda: f"quiet; there are {left()}")
    site.wait_nodes()
    running: dict[str, object] = {}

    def is_over() -> bool:
        [row] = site.airflow.query("SELECT count(*) AS n FROM task_instance WHERE state = 'running'")
        running.update(database=row["n"], executors=executors_running(site))
        return running == {"database": 0, "executors": dict.fromkeys(SCHEDULERS, 0)}

    site.wait(is_over, lambda: f"no task that runs; there are {running}")


def executors_running(site: Site) -> dict[str, int]:
    """Return how many tasks the executor of each scheduler counts as running, as it tells on SIGUSR2."""
    before = {name: len(_dumps(site, name)) for name in SCHEDULERS}

    def have_told() -> bool:
        for name in SCHEDULERS:
            process = site.airflow.component(name)
            if _handles(process.pid, signal.SIGUSR2):
                process.signal(signal.SIGUSR2)
        return all(len(_dumps(site, name)) > before[name] for name in SCHEDULERS)

    site.wait(have_told, "what the executors count")
    return {name: _dumps(site, name)[-1] for name in SCHEDULERS}


def _dumps(site: Site, name: str) -> list[int]:
    text = site.airflow.component(name).log_file.read_text(errors="replace")
    return [int(count) for count in _RUNNING.findall(text)]


def _handles(pid: int, number: signal.Signals) -> bool:
    """Tell whether the process has a handler for the signal: it would end one that is still starting."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False
    caught = next(line for line in status.splitlines() if line.startswith("SigCgt:"))
    return bool(int(caught.split()[1], 16) >> (number - 1) & 1)


def latencies_s(site: Site, run: Run) -> list[float]:
    """Return the seconds from each lease to the first line of its training's code, sorted."""
    granted = {str(lease["token"]): lease["granted_at"].timestamp() for lease in site.rig.lease_history()}
    return sorted(note["began_s"] - granted[note["token"]] for note in run.started if "began_s" in note)


def used_nodes(notes: Sequence[dict[str, Any]]) -> set[str]:
    """Return the nodes that the notes name, which have to be of the site."""
    nodes = {note["node"] for note in notes}
    assert nodes <= set(NODES)
    return nodes
