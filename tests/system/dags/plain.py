"""Tasks without a GPU request, as any DAG has them."""

from __future__ import annotations

import time

from airflow.sdk import dag, task


@dag(schedule=None, params={"seconds": 0})
def plain():
    """Run one task that greets, waits as long as the run's configuration says, and returns a number."""

    @task
    def greet(params=None):
        print("hello from the task")  # noqa: T201 - what a test looks for in the task's log
        time.sleep(params["seconds"])
        return 42

    greet()


plain()
