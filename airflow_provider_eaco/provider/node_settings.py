"""What the nodes of this machine are: real GPUs, simulated ones, and the power meter of the whole."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from airflow_provider_eaco.core.model.errors import InvalidRequestError
from airflow_provider_eaco.core.model.units import parse_memory_mib
from airflow_provider_eaco.provider.option_values import (
    read_json,
    read_objects,
    refuse_unknown,
    setting_error,
    whole,
)
from airflow_provider_eaco.provider.options import EXAMPLES

# Node names are typed into shells and matched by shell patterns.
_NODE_NAME = re.compile(r"[A-Za-z0-9._-]{1,128}")
_MAX_NODE_GPUS = 1024


class GpuSource(StrEnum):
    """What the GPUs of this machine are: real ones read through NVML, simulated ones, or what is found."""

    AUTO = "auto"
    NVML = "nvml"
    SIMULATED = "simulated"


class DispatchChoice(StrEnum):
    """Whether tasks run on this machine alone, or on nodes with a worker, too."""

    LOCAL = "local"
    CELERY = "celery"


@dataclass(frozen=True, slots=True)
class NodePowerSettings:
    """Where the power of the whole machine can be read: ``kind`` is redfish or prometheus."""

    kind: str
    url: str
    query: str | None = None


@dataclass(frozen=True, slots=True)
class SimulatedNodeSettings:
    """One simulated node as configured; memory in MiB per GPU, ``None`` for the model's own."""

    name: str
    gpus: int = 8
    gpu_model: str = "V100"
    gpu_memory_mib: int | None = None
    host_memory_mib: int | None = None


def gpu_source(text: str) -> GpuSource:
    """Return the choice.

    :raises InvalidSettingError: if it is none.
    """
    try:
        return GpuSource(text.strip().lower())
    except ValueError:
        raise setting_error("telemetry", f"{text!r} must be one of {', '.join(GpuSource)}") from None


def dispatch_choice(text: str) -> DispatchChoice:
    """Return the choice.

    :raises InvalidSettingError: if it is none.
    """
    try:
        return DispatchChoice(text.strip().lower())
    except ValueError:
        raise setting_error("dispatch", f"{text!r} must be one of {', '.join(DispatchChoice)}") from None


def is_node_name(text: str) -> bool:
    """Tell whether the text may be the name of a node."""
    return _NODE_NAME.fullmatch(text) is not None


def gpu_memory_mib(text: str) -> dict[str, int]:
    """Return the memory in MiB of GPUs that do not tell theirs, by model or UUID.

    :raises InvalidSettingError: naming what cannot be used.
    """
    option = "gpu_memory"
    if not text.strip():
        return {}
    row = read_json(option, text)
    if not isinstance(row, dict) or not all(name.strip() for name in row):
        raise setting_error(
            option, f"must be a JSON object, GPU model or UUID -> size; example: {EXAMPLES[option]}"
        )
    try:
        return {name: parse_memory_mib(size, name) for name, size in row.items()}
    except InvalidRequestError as error:
        raise setting_error(option, str(error)) from error


def node_power(text: str) -> NodePowerSettings | None:
    """Return where the power is read, ``None`` for an empty text.

    :raises InvalidSettingError: naming what cannot be used.
    """
    option = "node_power"
    if not text.strip():
        return None
    row = read_json(option, text)
    if not isinstance(row, dict) or not all(isinstance(value, str) for value in row.values()):
        raise setting_error(option, f"must be a JSON object of texts; example: {EXAMPLES[option]}")
    refuse_unknown(option, row, {"kind", "url", "query"})
    kind, url, query = row.get("kind"), row.get("url", ""), row.get("query")
    if kind not in {"redfish", "prometheus"}:
        raise setting_error(option, f"kind is {kind!r}, must be redfish or prometheus")
    if not url.startswith(("http://", "https://")):
        raise setting_error(option, f"url is {url!r}, must begin with http:// or https://")
    if (kind == "prometheus") != bool(query):
        raise setting_error(option, "query is needed for prometheus, and for nothing else")
    return NodePowerSettings(kind, url, query)


def simulated_nodes(text: str, auto_name: str | None) -> tuple[SimulatedNodeSettings, ...]:
    """Return the nodes; ``auto`` is one of this name, none without a name.

    :raises InvalidSettingError: naming what cannot be used.
    """
    option = "simulated_nodes"
    if text.strip().lower() == "none":
        return ()
    if text.strip().lower() == "auto":
        return () if auto_name is None else (SimulatedNodeSettings(auto_name),)
    nodes = tuple(_simulated_node(row) for row in read_objects(option, text))
    names = [node.name for node in nodes]
    if len(set(names)) < len(names):
        raise setting_error(option, f"names must differ: {', '.join(names)}")
    return nodes


def safe_name(host: str) -> str:
    """Return a machine's name as one that needs no quoting in a shell."""
    safe = re.sub(r"[^A-Za-z0-9.-]+", "-", host).strip("-.")
    return safe[:64] or "host"


def _simulated_node(row: Mapping[str, Any]) -> SimulatedNodeSettings:
    option = "simulated_nodes"
    allowed = {"name", "gpus", "gpu_model", "gpu_memory", "host_memory"}
    refuse_unknown(option, row, allowed)
    name = row.get("name")
    if not isinstance(name, str) or not _NODE_NAME.fullmatch(name):
        raise setting_error(
            option, f"name is {name!r}, must be 1 to 128 letters, digits, dots, dashes or underscores"
        )
    model = row.get("gpu_model", "V100")
    if not isinstance(model, str):
        raise setting_error(option, f"node {name}: gpu_model is {model!r}, must be the name of a GPU model")
    gpus = whole(f"{option}, {name}, gpus", row.get("gpus", 8), most=_MAX_NODE_GPUS)
    try:
        memory_mib, host_mib = (
            parse_memory_mib(row[key], key) if key in row else None for key in ("gpu_memory", "host_memory")
        )
    except InvalidRequestError as error:
        raise setting_error(option, f"node {name}: {error}") from error
    return SimulatedNodeSettings(name, gpus, model, memory_mib, host_mib)
