"""Requests that no parser of a DAG refuses, beside a task that is in order (case C23)."""

from __future__ import annotations

from airflow.providers.standard.operators.python import PythonOperator
from airflow.sdk import DAG

REQUESTS = {
    "no_object": "two GPUs",
    "unknown_key": {"gpu": 1},
    "wrong_type": {"gpus": "two"},
    "not_serialisable": {"gpus": 1, "profile_params": object()},
    "in_order": {"gpus": 1},
}

with DAG("broken_requests", schedule=None, params={"folder": ""}) as dag:
    for task_id, request in REQUESTS.items():
        PythonOperator(
            task_id=task_id, python_callable=print, op_args=["it ran"], executor_config={"eaco": request}
        )
    PythonOperator(task_id="no_dict", python_callable=print, op_args=["it ran"], executor_config=["eaco"])
