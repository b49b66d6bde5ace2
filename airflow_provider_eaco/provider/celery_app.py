"""The Celery side of many machines: an application from Airflow's ``[celery]`` settings, and its one message.

Nothing is kept in a result backend: what became of a run is told by its node's reports.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from airflow_provider_eaco.core.model.errors import InvalidSettingError
from airflow_provider_eaco.dispatch.celery import START_TASK, queue_of

_EXTRA = "pip install 'airflow-provider-eaco[celery]'"


def make_app() -> Any:
    """Return a Celery application with Airflow's broker; it connects when it is used.

    :raises InvalidSettingError: if Celery is not installed or its settings cannot be used.
    """
    try:
        from airflow.providers.celery.executors.celery_executor_utils import get_celery_configuration
        from celery import Celery
    except ImportError as error:
        raise InvalidSettingError("[eaco] dispatch", f"Celery cannot be loaded: {error}; {_EXTRA}") from error
    try:
        configuration = dict(get_celery_configuration())
    except Exception as error:
        raise InvalidSettingError("[celery]", f"cannot be used: {error}") from error
    return Celery("eaco", config_source={**configuration, **_OWN}, set_as_current=False)


# A message says "ask whether you may begin this": it is done with as soon as it was read, and nobody waits
# for an answer. What is lost is taken back and sent anew under another token.
_OWN: Mapping[str, Any] = {
    "result_backend": None,
    "task_ignore_result": True,
    "task_acks_late": False,
    "task_track_started": False,
    "task_serializer": "json",
    "accept_content": ["json"],
    "worker_prefetch_multiplier": 1,
    "worker_concurrency": 1,
    "worker_pool": "solo",
    "worker_send_task_events": False,
    "worker_enable_remote_control": False,
    "worker_hijack_root_logger": False,
    "worker_redirect_stdouts": False,
    "broker_connection_retry_on_startup": True,
    "broker_connection_max_retries": None,
    "broker_connection_timeout": 3.0,
    "task_routes": None,
}


def sender(app: Any) -> Callable[[str, str, Mapping[str, Any]], None]:
    """Return what puts a message for a task into a queue.

    It gives up after a few seconds: the scheduler's loop must not wait for a broker that is away.
    """

    def send(queue: str, task: str, message: Mapping[str, Any]) -> None:
        app.send_task(
            task,
            args=[dict(message)],
            queue=queue,
            ignore_result=True,
            retry=True,
            retry_policy={"max_retries": 1, "interval_start": 0.1, "interval_max": 0.2},
        )

    return send


def consume(app: Any, node: str, take: Callable[[Mapping[str, Any]], None]) -> None:
    """Hand every message of the node's queue to ``take``, in this thread, until this process gets SIGTERM.

    :raises SystemExit: if the worker ends otherwise.
    """

    def start(message: Mapping[str, Any]) -> None:
        take(message)

    app.task(name=START_TASK)(start)
    app.finalize()
    worker = app.Worker(
        hostname=f"eaco@{node}",
        queues=[queue_of(node)],
        pool="solo",
        concurrency=1,
        optimization="fair",
        without_gossip=True,
        without_mingle=True,
        without_heartbeat=True,
        beat=False,
    )
    worker.start()
