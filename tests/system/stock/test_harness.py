import pytest

from harness import Airflow, AirflowSettings, HarnessError

pytestmark = [pytest.mark.airflow]


def test_a_task_runs_from_trigger_to_log(stock_airflow):
    """A triggered run of the stock executor succeeds, and its task, log, rows and CLI all tell so."""
    run_id = stock_airflow.trigger("plain")
    assert stock_airflow.wait_run("plain", run_id) == "success"
    instance = stock_airflow.wait_task("plain", run_id, "greet", {"success"})
    assert (instance["state"], instance["try_number"]) == ("success", 1)
    assert "hello from the task" in stock_airflow.api.logs("plain", run_id, "greet")
    rows = stock_airflow.query("SELECT state FROM task_instance WHERE run_id = :run_id", run_id=run_id)
    assert rows == [{"state": "success"}]
    states = stock_airflow.cli_json("tasks", "states-for-dag-run", "plain", run_id)
    assert [state["state"] for state in states] == ["success"]


def test_a_killed_scheduler_leaves_a_task_that_stop_will_find(stock_airflow):
    """A scheduler can be killed and started again; what the dead one left is still seen as ours, and ended
    by the fixture, which checks it.
    """
    run_id = stock_airflow.trigger("plain", {"seconds": 300})
    pid = stock_airflow.wait_for(
        lambda: stock_airflow.query("SELECT pid FROM task_instance WHERE run_id = :r AND pid > 0", r=run_id),
        "the pid of the running task",
    )[0]["pid"]
    assert pid in stock_airflow.processes()
    stock_airflow.kill_scheduler()
    assert pid in stock_airflow.processes()
    stock_airflow.start_scheduler()
    again = stock_airflow.trigger("plain")
    assert stock_airflow.wait_run("plain", again) == "success"


def test_a_component_that_cannot_start_is_named_with_its_last_words(tmp_path, system_dags, migrated):
    """A wrong configuration ends the start with an error that carries Airflow's own, and leaves nothing."""
    options = {"core.auth_manager": "no.such.Manager"}
    broken = Airflow(AirflowSettings(tmp_path, system_dags, options=options, migrated=migrated))
    with pytest.raises(HarnessError, match=r"no\.such"):
        broken.start(only_api=True)
    assert broken.processes() == []
