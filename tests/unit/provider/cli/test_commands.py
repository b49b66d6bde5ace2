"""Every verb of ``airflow eaco``, through Airflow's own parser, on the real store."""

from __future__ import annotations

import json
import uuid
from io import StringIO
from typing import Any

import pytest
import sqlalchemy as sa
import yaml
from sqlalchemy.engine import Engine

from airflow_provider_eaco.core.model.gpu import GpuReading
from airflow_provider_eaco.core.ports import EnergyMethod, EnergyPart
from airflow_provider_eaco.provider.settings import load_settings
from airflow_provider_eaco.store import schema
from tests.builders import make_job, make_pair, make_solo
from tests.unit.provider.cli.rig import Cli, Cluster, set_pool

READ_VERBS = [("status",), ("queue",), ("leases",), ("nodes",), ("profiles", "list")]
OUTPUTS = ["table", "json", "yaml", "plain"]


def busy(cluster: Cluster) -> None:
    """Two tasks share the GPU of n1, a third waits, and n2 has two idle GPUs of another model."""
    pair = make_pair({"A": 1.05, "B": 1.05}, power_w=50.0)
    cluster.store.profiles.save_all([make_solo("A"), make_solo("B"), pair])
    cluster.add_node()
    cluster.add_node("n2", 2, "V100")
    for job_id, family in (("first", "A"), ("second", "B"), ("third", "never-seen")):
        cluster.add(
            make_job(
                job_id, family, 1, gpu_models=("T4",), queued_s=cluster.store.clock.now_s(), dag_id="d.x"
            )
        )
    cluster.plan()
    cluster.start("first", "second")


def test_status_counts_what_there_is(cluster: Cluster, cli: Cli) -> None:
    """Pools, Airflow pools, nodes, GPUs in use, waiting and running tasks come from one instant."""
    busy(cluster)
    (status,) = cli("status", "--output", "json").json()
    assert (status["gpus"], status["gpus_used"], status["waiting"], status["running"]) == ("3", "1", "1", "2")
    (pool,) = status["pools"]
    assert (pool["pool"], pool["mode"], pool["policy"], pool["ordering"]) == ("eaco", "share", "eaco", "fifo")
    assert (pool["gpus_used"], pool["gpus_shared"]) == ("1", "1")
    (airflow_pool,) = status["airflow_pools"]
    assert (airflow_pool["slots"], airflow_pool["used"], airflow_pool["open"]) == ("100", "2", "98")
    assert [node["node"] for node in status["nodes"]] == ["n1", "n2"]
    assert (status["power"], status["energy"]) == ("unknown", "unknown")


def test_status_in_words_has_every_section(cluster: Cluster, cli: Cli) -> None:
    """The table form names totals, pools and nodes."""
    busy(cluster)
    shown = cli("status").out
    assert "GPUs: 1 of 3 in use, 0 unhealthy, 0 unknown; power unknown; recorded energy unknown" in shown
    assert "Tasks: 2 hold GPUs, 1 wait" in shown
    assert all(title in shown for title in ("GPU pools", "Airflow pools", "Nodes"))


def test_status_shows_watts_and_joules_where_they_are_known(cluster: Cluster, cli: Cli) -> None:
    """Power is that of all GPUs when each is read; energy is the sum of what is recorded."""
    busy(cluster)
    from airflow import settings

    from airflow_provider_eaco.store.inventory import SqlReadings
    from airflow_provider_eaco.store.session import Database

    uuids = ("n1-gpu00", "n2-gpu00", "n2-gpu01")
    SqlReadings(Database(settings.NonScopedSession)).save([GpuReading(u, 1.0, power_w=50.0) for u in uuids])
    token = cluster.lease("first").token
    cluster.store.energy.add(EnergyPart("first", token, "n1-gpu00", 7.2e6, 10.0, EnergyMethod.COUNTER))
    (status,) = cli("status", "-o", "json").json()
    assert (status["power"], status["energy"]) == ("150 W", "2.000 kWh")
    words = cli("why", "first").out
    assert "energy: 2.000 kWh in 10 s; 720000 W on average, unknown at most; stretch unknown; " in words
    assert "; beside d.x.second; from the device's counter" in words
    first, second = cli("leases", "-o", "json").json()
    assert (first["mean_power"], second["mean_power"]) == ("720000 W", "unknown")


def test_c11_a_pool_shrunk_below_its_use_shows_no_negative_number(cluster: Cluster, cli: Cli) -> None:
    """Open is 0 and the pool says that it is closed."""
    busy(cluster)
    set_pool("eaco", 1)
    (row,) = cli("status", "-o", "json").json()[0]["airflow_pools"]
    assert (row["slots"], row["used"], row["open"]) == ("1", "2", "0")
    assert row["note"].startswith("closed")


def test_leases_name_the_co_residents(cluster: Cluster, cli: Cli) -> None:
    """Each holder is listed with its GPUs, its state and the tasks beside it."""
    busy(cluster)
    rows = cli("leases", "-o", "json").json()
    assert [(row["job"], row["with_tasks"], row["state"]) for row in rows] == [
        ("first", "d.x.second", "trial"),
        ("second", "d.x.first", "trial"),
    ]


def test_nodes_list_their_gpus(cluster: Cluster, cli: Cli) -> None:
    """JSON has the GPUs inside their node; the table form has a second table for them."""
    busy(cluster)
    first, second = cli("nodes", "-o", "json").json()
    assert (first["node"], first["gpus_used"], second["gpus_used"]) == ("n1", "1", "0")
    assert [gpu["residents"] for gpu in first["gpu_list"]] == ["d.x.first, d.x.second"]
    assert "n2-gpu01" in cli("nodes").out


def test_why_tells_the_story_of_a_running_task(cluster: Cluster, cli: Cli) -> None:
    """Where it was launched, with whom, and the trial; a running task has no reason to wait."""
    busy(cluster)
    (told,) = cli("why", "first", "-o", "json").json()
    assert (told["state"], told["reason"], told["position"]) == ("running", None, None)
    assert [event["event"] for event in told["story"]] == ["granted", "trial"]
    words = cli("why", "first").out
    assert "d.x.first (job first, family A)" in words
    assert "d.x.second joined" in words


def test_why_finds_a_task_by_its_name(cluster: Cluster, cli: Cli) -> None:
    """``DAG_ID.TASK_ID`` is found although ids have dots; the newest ended job where none lives."""
    busy(cluster)
    assert cli("why", "d.x.third", "-o", "json").json()[0]["job"] == "third"
    cluster.end("first")
    assert cli("why", "d.x.first", "-o", "json").json()[0]["state"] == "finished"


def test_why_finds_one_mapped_task(cluster: Cluster, cli: Cli) -> None:
    """The map index picks one of a sweep; without it a person sees a few, and how many more there are."""
    cluster.add(*(make_job(f"m{n}", task_id="sweep", map_index=n) for n in range(12)))
    assert [each["job"] for each in cli("why", "dag.sweep[3]", "-o", "json").json()] == ["m3"]
    assert "and 2 more; name one by its map index or job id" in cli("why", "dag.sweep").out


def test_why_finds_a_task_by_its_run(cluster: Cluster, cli: Cli) -> None:
    """``DAG_ID RUN_ID TASK_ID`` leads over Airflow's task instance to the newest try that asked for GPUs."""
    job_id = add_task_instance("d", "run1", "t")
    cluster.add(make_job(job_id, dag_id="d", task_id="t"))
    assert cli("why", "d", "run1", "t", "-o", "json").json()[0]["job"] == job_id
    assert cli("why", "d", "run1", "t", "-1", "-o", "json").json()[0]["job"] == job_id
    cluster.plan()
    assert [row["run"] for row in cli("queue", "-o", "json").json()] == ["run1"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("nobody",), "no job of a task 'nobody' is known; name it by its job id, as DAG_ID.TASK_ID"),
        (("a.b",), "no job of a task 'a.b' is known"),
        (("d", "t"), "'d t' names no task; name it by"),
        (("d", "run9", "t"), "Airflow has no task d.t in run 'run9'"),
        (("d", "run1", "t", "4"), "Airflow has no task d.t[4] in run 'run1'"),
        (("d", "run1", "t", "x"), "MAP_INDEX is 'x'; it must be a whole number"),
        (
            ("d", "run1", "t"),
            "task d.t in run 'run1' never asked for GPUs here; Airflow's state of it: queued",
        ),
    ],
)
def test_why_of_an_unknown_task_is_a_clear_error(
    words: tuple[str, ...], message: str, cluster: Cluster, cli: Cli
) -> None:
    """One line on standard error that says how to name a task, and exit code 1."""
    add_task_instance("d", "run1", "t")
    outcome = cli("why", *words)
    assert outcome.code == 1
    assert outcome.err.count("\n") == 1
    assert message in outcome.err


def test_c67_why_tells_what_the_audit_log_has_where_no_job_is_stored(cluster: Cluster, cli: Cli) -> None:
    """While our configuration cannot be used tasks are held, and nothing of ours is stored about them."""
    from airflow.models.log import Log
    from airflow.utils.session import create_session

    add_task_instance("d", "run1", "t")
    with create_session(scoped=False) as session:
        for event, text in (("eaco hold", "misconfigured: an option"), ("running", "of Airflow's own")):
            session.add(Log(event, extra=text, dag_id="d", run_id="run1", task_id="t", map_index=-1))
    told = (
        "d.t in run 'run1' has no job here; last told: eaco hold: misconfigured: an option; Airflow's state"
    )
    assert told in cli("why", "d", "run1", "t").err
    assert "no job of a task 'd.t' is known; last told: eaco hold: misc" in cli("why", "d.t").err
    assert "d.t[-1] in run 'run1' has no job here; last told: eaco" in cli("why", "d", "run1", "t", "-1").err


def test_drain_and_its_end(cluster: Cluster, cli: Cli) -> None:
    """A drained node takes nothing new; the mark goes with ``--undo``."""
    cluster.add_node()
    assert "draining" in cli("drain", "n1").out
    assert cli("nodes", "-o", "json").json()[0]["state"] == "draining"
    cluster.add(make_job("j", "A", 1))
    cluster.plan()
    assert cli("why", "j", "-o", "json").json()[0]["reason"] == "draining"
    assert cli("drain", "n1", "--undo", "-o", "json").json() == [
        {"node": "n1", "state": "takes new work again"}
    ]
    assert cli("nodes", "-o", "json").json()[0]["state"] == "available"


def test_drain_of_an_unknown_node_names_the_known_ones(cluster: Cluster, cli: Cli) -> None:
    """The error lists the nodes, or says that there are none."""
    assert cli("drain", "n9").err == "no node is named 'n9'; no GPU workers registered\n"
    cluster.add_node()
    outcome = cli("drain", "n9")
    assert (outcome.code, outcome.err) == (1, "no node is named 'n9'; nodes are n1\n")


def test_hold_and_release_of_a_waiting_task(cluster: Cluster, cli: Cli) -> None:
    """A held task waits with the reason ``on_hold``; released it goes on; a running one cannot be held."""
    cluster.add_node()
    cluster.add(make_job("j", "A", 1, task_id="t"))
    assert cli("hold", "dag.t", "-o", "json").json() == [
        {"task": "dag.t", "job": "j", "state": "held by a user"}
    ]
    cluster.plan()
    (told,) = cli("why", "j", "-o", "json").json()
    assert (told["state"], told["reason"]) == ("waiting, held by a user", "on_hold")
    assert cli("release", "j").code == 0
    cluster.plan()
    outcome = cli("hold", "j")
    assert (outcome.code, outcome.err) == (
        1,
        "j is not waiting; only a waiting task can be held or released\n",
    )


def test_pools_reset_makes_a_users_size_ours_again(cluster: Cluster, cli: Cli, engine: Engine) -> None:
    """A pool that a user has sized is managed again; a pool that is not declared is refused by name."""
    set_pool("eaco", 7, "my own words")
    assert "managed again" in cli("pools", "reset", "eaco").out
    from airflow.models.pool import Pool

    with engine.connect() as connection:
        description = connection.scalar(sa.select(Pool.description).where(Pool.pool == "eaco"))
    assert description.startswith("Managed by airflow-provider-eaco: 7 slots")
    assert cli("pools", "reset", "x").err == "no GPU pool is named 'x'; [eaco] pools has eaco\n"
    set_pool("eaco", None)
    assert cli("pools", "reset", "eaco").err.startswith("Airflow has no pool 'eaco'")


def test_db_remove_takes_our_tables_and_nothing_else(
    cluster: Cluster, cli: Cli, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a yes nothing is removed; with one exactly our tables go, and a second time nothing does."""
    before = set(sa.inspect(engine).get_table_names())
    monkeypatch.setattr("sys.stdin", StringIO(""))
    assert cli("db", "remove").err == "nothing was removed; without a terminal it takes --yes\n"
    monkeypatch.setattr("builtins.input", lambda _: "n")
    assert cli("db", "remove").err == "nothing was removed\n"
    assert set(sa.inspect(engine).get_table_names()) == before
    assert "removed eaco_" in cli("db", "remove", "--yes").out
    ours = {table.name for table in schema.metadata.sorted_tables}
    assert before - set(sa.inspect(engine).get_table_names()) == ours
    assert cli("db", "remove", "--yes").out == "there was nothing to remove\n"


@pytest.mark.parametrize("verb", [*READ_VERBS, ("why", "first"), ("profiles", "show", "A")], ids=" ".join)
def test_every_verb_prints_in_all_of_airflows_formats(
    verb: tuple[str, ...], cluster: Cluster, cli: Cli
) -> None:
    """JSON and YAML are lists that say the same; tables are not empty."""
    busy(cluster)
    printed = {output: cli(*verb, "--output", output) for output in OUTPUTS}
    assert [outcome.code for outcome in printed.values()] == [0] * len(OUTPUTS)
    assert all(outcome.out.strip() for outcome in printed.values())
    found = without_times(json.loads(printed["json"].out))
    assert isinstance(found, list)
    assert found
    assert without_times(yaml.safe_load(printed["yaml"].out)) == found


@pytest.mark.parametrize("verb", READ_VERBS, ids=" ".join)
def test_c66_every_verb_runs_without_a_worker(verb: tuple[str, ...], cluster: Cluster, cli: Cli) -> None:
    """On a machine without a GPU every verb runs, and ``status`` and ``nodes`` say why they are empty."""
    for output in OUTPUTS:
        outcome = cli(*verb, "--output", output)
        assert (outcome.code, outcome.err) == (0, "")
        if verb[0] in {"status", "nodes"} and output in {"table", "plain"}:
            assert "no GPU workers registered" in outcome.out
        if output == "json":
            assert isinstance(json.loads(outcome.out), list)


MISSING = [
    *READ_VERBS,
    ("why", "x"),
    ("hold", "x"),
    ("release", "x"),
    ("drain", "n"),
    ("drain", "n", "--undo"),
    ("profiles", "show", "J1"),
    ("profiles", "export"),
    ("simulate",),
    ("report",),
    ("bookings",),
    ("unbook", "1"),
    ("book", "n", "--until", "2h", "--for", "Ada"),
]


@pytest.mark.parametrize("verb", MISSING, ids=" ".join)
def test_c66_without_our_tables_every_verb_says_what_to_run(
    verb: tuple[str, ...], cli: Cli, engine: Engine
) -> None:
    """One line that names ``airflow db migrate``, exit code 1, and no traceback."""
    schema.metadata.drop_all(engine)
    outcome = cli(*verb)
    assert outcome.code == 1
    assert outcome.err.count("\n") == 1
    assert "airflow db migrate" in outcome.err
    assert outcome.out == ""


def test_without_any_table_airflows_command_is_named(cli: Cli, engine: Engine) -> None:
    """Where even Airflow's own tables are missing the same command is named."""
    from airflow.models.base import Base

    Base.metadata.drop_all(engine)
    outcome = cli("status")
    assert (outcome.code, outcome.err.count("\n")) == (1, 1)
    assert "airflow db migrate" in outcome.err


def test_a_broken_section_is_told_in_one_line(
    cli: Cli, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A bad ``[eaco] pools`` is named with what is allowed."""
    monkeypatch.setenv("AIRFLOW__EACO__POOLS", '{"eaco": {"mode": "sahre"}}')
    load_settings.cache_clear()
    outcome = cli("status")
    assert outcome.code == 1
    assert outcome.err.startswith("[eaco] pools, eaco, mode: 'sahre' must be one of off, observe")
    assert outcome.err.count("\n") == 1


def test_a_change_is_in_airflows_audit_log(cluster: Cluster, cli: Cli, engine: Engine) -> None:
    """Who drained a node can be found later; looking leaves no line."""
    from airflow.models.log import Log

    cluster.add_node()
    cli("status")
    cli("drain", "n1")
    with engine.connect() as connection:
        events = connection.scalars(sa.select(Log.event)).all()
    assert len(events) == 1
    assert events[0].startswith("cli_")


def without_times(document: Any) -> Any:
    """What was printed without what depends on the moment."""
    if isinstance(document, list):
        return [without_times(each) for each in document]
    if isinstance(document, dict):
        moments = {"age", "last_report", "waited"}
        return {name: without_times(value) for name, value in document.items() if name not in moments}
    return document


def add_task_instance(dag_id: str, run_id: str, task_id: str) -> str:
    """Give Airflow a queued task instance and return its id."""
    from airflow.models.taskinstance import TaskInstance
    from airflow.utils.session import create_session

    job_id = uuid.uuid4()
    row = {
        "id": job_id, "dag_id": dag_id, "run_id": run_id, "task_id": task_id, "map_index": -1,
        "state": "queued", "pool": "eaco", "pool_slots": 1, "priority_weight": 1, "queue": "default",
        "try_number": 1, "max_tries": 0, "custom_operator_name": "", "executor_config": {},
    }  # fmt: skip
    with create_session(scoped=False) as session:
        session.execute(sa.text("PRAGMA foreign_keys=OFF"))
        session.execute(sa.insert(TaskInstance).values(**row))
    return str(job_id)
