"""What a task's process finds in its environment: the GPUs it was granted, or none.

Pure: mappings in, mappings out. Whoever starts the process sets these variables before any user code is
imported, so that CUDA, which reads them once, sees ours.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from airflow_provider_eaco.core.model.placement import Placement

JOB_ID_VARIABLE = "EACO_JOB_ID"
LEASE_TOKEN_VARIABLE = "EACO_LEASE_TOKEN"  # noqa: S105 - the name of a fencing token, not a secret
NODE_VARIABLE = "EACO_NODE"
FAMILY_VARIABLE = "EACO_FAMILY"
SIMULATED_STATE_VARIABLE = "EACO_SIMULATED_STATE"
LOG_FILE_VARIABLE = "EACO_LOG_FILE"

# Variables that choose devices. A value that came from elsewhere is worth a line in the task's log.
_DEVICE_VARIABLES = ("CUDA_DEVICE_ORDER", "CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES")


class Grant(Protocol):
    """What a task was granted: a lease, or a node's claim on one."""

    @property
    def job_id(self) -> str: ...

    @property
    def token(self) -> int: ...

    @property
    def placement(self) -> Placement: ...


def granted_environment(lease: Grant, family: str, simulated_state: str | None = None) -> dict[str, str]:
    """Return the variables of a task that holds ``lease``.

    GPUs are named by UUID and never by index, since NVML and CUDA may count the cards of one machine
    differently. A lease without GPUs gives an environment in which none is visible.

    :param family: the name under which the run is profiled.
    :param simulated_state: path of the device model's state file, for a lease on a simulated node.
    """
    environment = {
        JOB_ID_VARIABLE: lease.job_id,
        LEASE_TOKEN_VARIABLE: str(lease.token),
        NODE_VARIABLE: lease.placement.node,
        FAMILY_VARIABLE: family,
    }
    if lease.placement.gpu_uuids:
        environment["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"
        environment["CUDA_VISIBLE_DEVICES"] = ",".join(lease.placement.gpu_uuids)
    else:
        environment |= environment_without_gpu()
    if simulated_state is not None:
        environment[SIMULATED_STATE_VARIABLE] = simulated_state
    return environment


def environment_without_gpu() -> dict[str, str]:
    """Return the variables under which no GPU is visible, to CUDA and to NVIDIA's container runtime."""
    return {"CUDA_VISIBLE_DEVICES": "", "NVIDIA_VISIBLE_DEVICES": "void"}


def device_conflicts(granted: Mapping[str, str], inherited: Mapping[str, str]) -> tuple[str, ...]:
    """Name every device variable that was already set to another value than the granted one.

    The granted value wins; the sentences are for the log.
    """
    return tuple(
        f"{name}={inherited[name]!r} was already set; the granted value replaces it: {granted[name]!r}"
        for name in _DEVICE_VARIABLES
        if name in granted and name in inherited and inherited[name] != granted[name]
    )
