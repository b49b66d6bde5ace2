"""The ``[eaco]`` section, read once per process, checked, as frozen values."""

from __future__ import annotations

import json
import math
import re
import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cache
from pathlib import Path
from typing import Any

from airflow_provider_eaco.core.model.errors import InvalidRequestError, InvalidSettingError
from airflow_provider_eaco.core.model.pool import (
    DemandCurve,
    FairShare,
    PoolMode,
    PoolSettings,
    PredictorName,
    Spreading,
    TeamSource,
)
from airflow_provider_eaco.core.model.units import parse_memory_mib
from airflow_provider_eaco.provider.options import DEFAULTS, EXAMPLES, SECTION

_NVIDIA_DRIVER = Path("/proc/driver/nvidia/version")
# Node names are typed into shells and matched by shell patterns.
_NODE_NAME = re.compile(r"[A-Za-z0-9._-]{1,128}")
# Airflow's own limit for the name of a pool.
_MAX_POOL_NAME = 256
_MAX_NODE_GPUS = 1024


class GpuSource(StrEnum):
    """What the GPUs of this machine are: real ones read through NVML, simulated ones, or what is found."""

    AUTO = "auto"
    NVML = "nvml"
    SIMULATED = "simulated"


@dataclass(frozen=True, slots=True)
class SimulatedNodeSettings:
    """One simulated node as configured; memory in MiB per GPU, ``None`` for the model's own."""

    name: str
    gpus: int = 8
    gpu_model: str = "V100"
    gpu_memory_mib: int | None = None
    host_memory_mib: int | None = None


@dataclass(frozen=True, slots=True)
class EacoSettings:
    """All of ``[eaco]``. ``default_max_stretch`` is ``None`` for no limit.

    ``host`` is the name of this machine's node with real GPUs, ``has_driver`` whether there is an NVIDIA
    driver; ``are_nodes_listed``: the simulated nodes were named one by one.
    """

    pools: tuple[PoolSettings, ...] = (PoolSettings(),)
    hold_window: int = 2000
    default_max_stretch: float | None = 1.10
    rules: tuple[Mapping[str, Any], ...] = ()
    planner_ttl_s: float = 30.0
    kill_grace_s: float = 10.0
    simulated_nodes: tuple[SimulatedNodeSettings, ...] = ()
    simulated_time_scale: float = 600.0
    simulated_state: Path = field(default_factory=lambda: Path("eaco/simulated.json"))
    simulated_truth: tuple[Mapping[str, Any], ...] = ()
    telemetry: GpuSource = GpuSource.AUTO
    are_nodes_listed: bool = False
    host: str = "host"
    has_driver: bool = False

    def pool_for(self, airflow_pool: str) -> PoolSettings:
        """Return the GPU pool that serves jobs of this Airflow pool: the one of its name, else the first."""
        for pool in self.pools:
            if pool.name == airflow_pool:
                return pool
        return self.pools[0]


@cache
def load_settings() -> EacoSettings:
    """Return the settings of this process, read from Airflow's configuration at the first call.

    :raises InvalidSettingError: naming the option, if one of them cannot be used.
    """
    from configparser import Error as ConfigError

    from airflow.configuration import AIRFLOW_HOME, conf
    from airflow.exceptions import AirflowConfigException

    def read(option: str) -> str:
        try:
            return str(conf.get(SECTION, option, fallback=DEFAULTS[option]))
        except (ConfigError, AirflowConfigException) as error:  # a single % in airflow.cfg, a failing command
            raise _error(option, f"cannot be read from Airflow's configuration: {error}") from error

    return parse_settings(
        read, home=Path(AIRFLOW_HOME), has_driver=_NVIDIA_DRIVER.exists(), host=socket.gethostname()
    )


def parse_settings(read: Callable[[str], str], *, home: Path, has_driver: bool, host: str) -> EacoSettings:
    """Return the settings whose texts ``read`` returns by option name.

    :param home: where the simulated nodes keep their state unless it is named.
    :param has_driver: whether the machine has an NVIDIA driver; then ``simulated_nodes = auto`` makes none,
        unless ``telemetry = simulated`` asks for it.
    :param host: the machine's name, which its nodes get: schedulers on several machines share one database,
        where the names and GPUs of nodes have to differ.
    :raises InvalidSettingError: naming the option.
    """
    shared = {
        "trial_limit_s": _above_0("trial_limit", read("trial_limit")),
        "reject_after_s": _reject_after("reject_after", read("reject_after")),
    }
    source = _source(read("telemetry"))
    nodes_text, name = read("simulated_nodes"), _safe_name(host)
    simulates = source is GpuSource.SIMULATED or (source is GpuSource.AUTO and not has_driver)
    return EacoSettings(
        pools=_pools(read("pools"), shared),
        hold_window=_whole("hold_window", read("hold_window")),
        default_max_stretch=_stretch(read("default_max_stretch")),
        rules=_objects("rules", read("rules")),
        planner_ttl_s=_above_0("planner_ttl", read("planner_ttl")),
        kill_grace_s=_above_0("kill_grace", read("kill_grace")),
        simulated_nodes=_simulated_nodes(nodes_text, f"sim-{name}" if simulates else None),
        simulated_time_scale=_above_0("simulated_time_scale", read("simulated_time_scale")),
        simulated_state=_state_file(read("simulated_state"), home),
        simulated_truth=_objects("simulated_truth", read("simulated_truth")),
        telemetry=source,
        are_nodes_listed=nodes_text.strip().lower() not in {"auto", "none"},
        host=name,
        has_driver=has_driver,
    )


def _source(text: str) -> GpuSource:
    try:
        return GpuSource(text.strip().lower())
    except ValueError:
        raise _error("telemetry", f"{text!r} must be one of {', '.join(GpuSource)}") from None


def _error(option: str, problem: str) -> InvalidSettingError:
    return InvalidSettingError(f"[{SECTION}] {option}", problem)


def _json(option: str, text: str) -> Any:
    try:
        return json.loads(text, object_pairs_hook=_without_repeats)
    except (ValueError, RecursionError) as error:
        raise _error(option, f"is not JSON that can be used: {error}; example: {EXAMPLES[option]}") from error


def _without_repeats(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    names = [name for name, _ in pairs]
    repeated = sorted({name for name in names if names.count(name) > 1})
    if repeated:
        raise ValueError(f"{', '.join(map(repr, repeated))} stands there twice")
    return dict(pairs)


def _objects(option: str, text: str) -> tuple[Mapping[str, Any], ...]:
    rows = _json(option, text)
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise _error(option, f"must be a JSON list of objects; example: {EXAMPLES[option]}")
    return tuple(rows)


def _number(option: str, value: object, allowed: str, is_allowed: Callable[[float], bool]) -> float:
    """Return a finite number of which ``is_allowed`` holds; ``allowed`` says so in the one message."""
    try:
        number = float(value) if isinstance(value, str | int | float) else math.nan
    except (ValueError, OverflowError):
        number = math.nan
    if isinstance(value, bool) or not math.isfinite(number) or not is_allowed(number):
        raise _error(option, f"{value!r} must be {allowed}")
    return number


def _above_0(option: str, value: object) -> float:
    return _number(option, value, "a number above 0", lambda number: number > 0)


def _whole(option: str, value: object, least: int = 1) -> int:
    allowed = f"a whole number of at least {least}"
    return int(_number(option, value, allowed, lambda number: number.is_integer() and number >= least))


def _stretch(text: str) -> float | None:
    if text.strip().lower() in {"none", ""}:
        return None
    allowed = "a number of at least 1, or none for no limit"
    return _number("default_max_stretch", text, allowed, lambda number: number >= 1)


def _reject_after(option: str, value: object) -> float:
    if isinstance(value, str) and value.strip().lower() == "never":
        return math.inf
    return _number(option, value, "a number of seconds of at least 0, or never", lambda number: number >= 0)


def _state_file(text: str, home: Path) -> Path:
    path = Path(text) if text.strip() else home / "eaco" / "simulated.json"
    if not path.is_absolute() or not text.isprintable():
        raise _error("simulated_state", f"{text!r} must be the absolute path of a file, or empty")
    return path


def _simulated_nodes(text: str, auto_name: str | None) -> tuple[SimulatedNodeSettings, ...]:
    """Return the nodes; ``auto`` is one of this name, none without a name."""
    option = "simulated_nodes"
    if text.strip().lower() == "none":
        return ()
    if text.strip().lower() == "auto":
        return () if auto_name is None else (SimulatedNodeSettings(auto_name),)
    nodes = tuple(_simulated_node(row) for row in _objects(option, text))
    names = [node.name for node in nodes]
    if len(set(names)) < len(names):
        raise _error(option, f"names must differ: {', '.join(names)}")
    return nodes


def _safe_name(host: str) -> str:
    safe = re.sub(r"[^A-Za-z0-9.-]+", "-", host).strip("-.")
    return safe[:64] or "host"


def _simulated_node(row: Mapping[str, Any]) -> SimulatedNodeSettings:
    option = "simulated_nodes"
    allowed = {"name", "gpus", "gpu_model", "gpu_memory", "host_memory"}
    _refuse_unknown(option, row, allowed)
    name = row.get("name")
    if not isinstance(name, str) or not _NODE_NAME.fullmatch(name):
        raise _error(
            option, f"name is {name!r}, must be 1 to 128 letters, digits, dots, dashes or underscores"
        )
    model = row.get("gpu_model", "V100")
    if not isinstance(model, str):
        raise _error(option, f"node {name}: gpu_model is {model!r}, must be the name of a GPU model")
    gpus = _whole(f"{option}, {name}, gpus", row.get("gpus", 8))
    if gpus > _MAX_NODE_GPUS:
        raise _error(f"{option}, {name}, gpus", f"{gpus} must be at most {_MAX_NODE_GPUS}")
    try:
        memory_mib, host_mib = (
            parse_memory_mib(row[key], key) if key in row else None for key in ("gpu_memory", "host_memory")
        )
    except InvalidRequestError as error:
        raise _error(option, f"node {name}: {error}") from error
    return SimulatedNodeSettings(name, gpus, model, memory_mib, host_mib)


def _refuse_unknown(option: str, row: Mapping[str, Any], allowed: set[str]) -> None:
    unknown = sorted(set(row) - allowed)
    if unknown:
        raise _error(option, f"unknown {', '.join(unknown)}; allowed are {', '.join(sorted(allowed))}")


def _pools(text: str, shared: Mapping[str, float]) -> tuple[PoolSettings, ...]:
    rows = _json("pools", text)
    if not isinstance(rows, dict) or not rows or not all(isinstance(row, dict) for row in rows.values()):
        raise _error(
            "pools",
            "must be a JSON object with at least one entry, pool name -> settings; "
            f"example: {EXAMPLES['pools']}",
        )
    return tuple(_pool(name, row, shared) for name, row in rows.items())


def _pool(name: str, row: Mapping[str, Any], shared: Mapping[str, float]) -> PoolSettings:
    option = f"pools, {name}"
    if not name.strip() or not name.isprintable() or len(name) > _MAX_POOL_NAME:
        raise _error("pools", f"{name!r} must be the name of a pool, of at most {_MAX_POOL_NAME} characters")
    _refuse_unknown(option, row, set(_POOL_CHECKS))
    values = {key: _POOL_CHECKS[key](f"{option}, {key}", value) for key, value in row.items()}
    return PoolSettings(name=name, **{**shared, **values})


def _text(option: str, value: object) -> str:
    if not isinstance(value, str) or not value.strip():
        raise _error(option, f"{value!r} must be a name")
    return value


def _patterns(option: str, value: object) -> tuple[str, ...]:
    if not isinstance(value, list) or not value or not all(isinstance(item, str) and item for item in value):
        raise _error(option, f"{value!r} must be a list of node names or shell patterns, such as ['gpu-*']")
    return tuple(value)


def _mode(option: str, value: object) -> PoolMode:
    if not isinstance(value, str) or value not in tuple(PoolMode):
        raise _error(option, f"{value!r} must be one of {', '.join(PoolMode)}")
    return PoolMode(value)


def _spreading(option: str, value: object) -> Spreading:
    if not isinstance(value, str) or value not in tuple(Spreading):
        raise _error(option, f"{value!r} must be one of {', '.join(Spreading)}")
    return Spreading(value)


def _predictor(option: str, value: object) -> PredictorName:
    if not isinstance(value, str) or value not in tuple(PredictorName):
        raise _error(option, f"{value!r} must be one of {', '.join(PredictorName)}")
    return PredictorName(value)


def _margin(option: str, value: object) -> int:
    return _whole(option, value, least=0)


def _share(option: str, value: object) -> float:
    return _number(option, value, "a number of at least 0", lambda number: number >= 0)


def _priority(option: str, value: object) -> int | None:
    if value is None:
        return None
    return int(_number(option, value, "a whole number, or null for none", float.is_integer))


def _names(option: str, value: object) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(item, str) and item for item in value):
        raise _error(option, f"{value!r} must be a list of names")
    return tuple(value)


def _flag(option: str, value: object) -> bool:
    if not isinstance(value, bool):
        raise _error(option, f"{value!r} must be true or false")
    return value


def _fair_share(option: str, value: object) -> FairShare:
    if not isinstance(value, dict):
        raise _error(option, f"{value!r} must be a JSON object")
    _refuse_unknown(option, value, {"by", "half_life_s", "shares", "quotas_gpu_h", "borrowing"})
    by = value.get("by", TeamSource.POOL)
    if by not in tuple(TeamSource):
        raise _error(f"{option}, by", f"{by!r} must be one of {', '.join(TeamSource)}")
    return FairShare(
        by=TeamSource(by),
        half_life_s=_above_0(f"{option}, half_life_s", value.get("half_life_s", FairShare().half_life_s)),
        shares=_by_team(f"{option}, shares", value.get("shares", {})),
        quotas_gpu_h=_by_team(f"{option}, quotas_gpu_h", value.get("quotas_gpu_h", {})),
        borrowing=_flag(f"{option}, borrowing", value.get("borrowing", True)),
    )


def _by_team(option: str, value: object) -> tuple[tuple[str, float], ...]:
    if not isinstance(value, dict):
        raise _error(option, f"{value!r} must be a JSON object: team -> number")
    return tuple((team, _above_0(f"{option}, {team}", number)) for team, number in value.items())


def _demand(option: str, value: object) -> tuple[DemandCurve, ...]:
    if not isinstance(value, dict):
        raise _error(
            option, f"{value!r} must be a JSON object: node -> 24 numbers of GPUs, one an hour (UTC)"
        )
    curves = []
    for node, hours in value.items():
        if not isinstance(hours, list) or len(hours) != 24:
            raise _error(f"{option}, {node}", f"{hours!r} must be a list of 24 numbers of GPUs")
        gpus = tuple(_whole(f"{option}, {node}", number, least=0) for number in hours)
        curves.append(DemandCurve(node, gpus))
    return tuple(curves)


_POOL_CHECKS: Mapping[str, Callable[[str, object], Any]] = {
    "nodes": _patterns,
    "mode": _mode,
    "policy": _text,
    "ordering": _text,
    "spreading": _spreading,
    "max_residents": _whole,
    "memory_margin_mib": _margin,
    "utilisation_limit_pct": _above_0,
    "exclusive_priority": _priority,
    "trial_limit_s": _above_0,
    "estimate_error": _share,
    "predictor": _predictor,
    "reject_after_s": _reject_after,
    "rules": _names,
    "ageing_s": _above_0,
    "reserve_after_s": _share,
    "fair_share": _fair_share,
    "aligned": _flag,
    "demand": _demand,
}
