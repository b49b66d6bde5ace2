"""``airflow eaco worker``: a machine's agent and the consumer of its queue, until it is told to stop.

The consumer has the main thread, since Celery handles the signals; the agent has one of its own and does the
work. Tasks are neither's children: a worker that ends or dies leaves them running, and the next one finds
them.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from airflow_provider_eaco.core.model.errors import InvalidSettingError
from airflow_provider_eaco.core.model.gpu import GpuReading, Node
from airflow_provider_eaco.core.node_runs import RunClaim
from airflow_provider_eaco.core.ports import LaunchOrder, Occupant
from airflow_provider_eaco.dispatch.environment import LOG_FILE_VARIABLE, granted_environment
from airflow_provider_eaco.provider import task_log
from airflow_provider_eaco.provider.adoption import find_process
from airflow_provider_eaco.provider.routing import configured_route
from airflow_provider_eaco.provider.services import NodeMeter
from airflow_provider_eaco.provider.settings import EacoSettings
from airflow_provider_eaco.provider.worker_agent import Machine, NodeAgent
from airflow_provider_eaco.provider.worker_api import NodeApi
from airflow_provider_eaco.provider.worker_register import RunRegister
from airflow_provider_eaco.provider.worker_secrets import drop_secrets
from airflow_provider_eaco.provider.workloads import ENTRY_POINT, log_path_of

log = logging.getLogger(__name__)

_EXECUTION_PATH = "/execution"
_NODES_PATH = "/eaco/nodes"
_LAST_REPORT_S = 15.0


def run_worker(node: str, credential: str, settings: EacoSettings) -> None:
    """Serve the node until this process gets SIGTERM; what runs there goes on.

    :raises InvalidSettingError: if the settings do not make one node.
    :raises WorkerRunsError: if a worker of this node runs on this machine already.
    """
    from airflow_provider_eaco.provider.celery_app import consume, make_app

    app = make_app()
    api = NodeApi(api_url(settings), node, socket.gethostname(), credential)
    register = RunRegister(settings.home / "eaco", node)
    dropped = drop_secrets(os.environ)
    if dropped:
        log.info("Kept from tasks: %s", ", ".join(dropped))
    if configured_route() is None:
        log.warning(
            "[core] executor names no EacoExecutor: a task whose DAG file names an executor fails here. Give "
            "this machine the schedulers' value"
        )
    machine = _machine(node, settings)
    agent = NodeAgent(machine, api, register)
    thread = threading.Thread(target=agent.run, name="eaco-agent", daemon=True)
    thread.start()
    try:
        consume(app, node, agent.take)
    finally:
        agent.stop()
        thread.join(_LAST_REPORT_S)
        if machine.meter.live is not None:
            machine.meter.live.close()
        machine.dispatcher.close(1.0)
        register.close()
        api.close()


def _machine(node: str, settings: EacoSettings) -> Machine:
    from airflow_provider_eaco.provider.wiring import (
        BuiltInBeliefs,
        make_dispatcher,
        make_limiter,
        make_meters,
    )

    renamed = tuple(replace(each, name=node) for each in settings.simulated_nodes)
    if len(renamed) > 1:
        raise InvalidSettingError(
            "[eaco] simulated_nodes", f"{len(renamed)} nodes are listed; a worker is one node, {node!r}"
        )
    meters = make_meters(replace(settings, host=node, simulated_nodes=renamed), BuiltInBeliefs())
    if len(meters) > 1:
        raise InvalidSettingError(
            "[eaco] simulated_nodes", "a worker is one node: of real GPUs, or of simulated ones"
        )
    meter = meters[0] if meters else NodeMeter(_NoGpus())
    if not meters:
        log.warning(
            "Node %s has no GPUs: there is no NVIDIA driver, and no simulated node is configured", node
        )
    dispatcher = make_dispatcher()
    dispatcher.warm_up()
    limiter = make_limiter(settings, f"power_limits_{node}.json")
    return Machine(node, socket.gethostname(), meter, dispatcher, partial(_order, meter), _find, limiter)


def _order(meter: NodeMeter, claim: RunClaim, payload: str) -> LaunchOrder:
    """Return the order of a claimed run. Everything but the payload comes from the API and this machine.

    :raises OSError: if the task's log file cannot be made.
    """
    environment = granted_environment(claim, claim.family, meter.simulated_state)
    log_path = log_path_of(payload)
    if log_path:
        environment[LOG_FILE_VARIABLE] = str(task_log.prepare(log_path))
    return LaunchOrder(claim.job_id, claim.token, ENTRY_POINT, payload, environment, claim.placement)


def _find(job_id: str, token: int) -> str | None:
    found = find_process(job_id, token)
    return None if found is None else str(found)


def api_url(settings: EacoSettings) -> str:
    """Return where the provider's API for nodes is mounted.

    :raises InvalidSettingError: if no option names it.
    """
    if settings.node_api_url:
        return settings.node_api_url
    from airflow.configuration import conf

    url = (conf.get("core", "execution_api_server_url", fallback="") or "").rstrip("/")
    if not url.startswith(("http://", "https://")):
        raise InvalidSettingError(
            "[eaco] node_api_url", "set it, or [core] execution_api_server_url, to the API server's address"
        )
    return url.removesuffix(_EXECUTION_PATH) + _NODES_PATH


class _NoGpus:
    """A machine on which there is nothing to meter yet."""

    def inventory(self) -> Sequence[Node]:
        return ()

    def read(self) -> Sequence[GpuReading]:
        return ()

    def occupy(self, occupants: Sequence[Occupant]) -> None:
        """Nobody can hold anything."""
