"""The ``[eaco]`` section, read once per process, checked, as frozen values."""

from __future__ import annotations

import math
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from airflow_provider_eaco.core.model.energy_budget import Shift
from airflow_provider_eaco.core.model.pool import (
    DemandCurve,
    FairShare,
    MemoryGrowth,
    PoolMode,
    PoolSettings,
    PowerLimits,
    PredictorName,
    Prices,
    Spreading,
    StrangerAction,
    TeamSource,
)
from airflow_provider_eaco.provider.energy_settings import (
    SERIES,
    SeriesSource,
    energy_budget,
    hours_s,
    series_source,
    shift,
)
from airflow_provider_eaco.provider.node_settings import (
    DispatchChoice,
    GpuSource,
    NodePowerSettings,
    SimulatedNodeSettings,
    dispatch_choice,
    gpu_memory_mib,
    gpu_source,
    node_power,
    safe_name,
    simulated_nodes,
)
from airflow_provider_eaco.provider.option_values import (
    above_0,
    duration_s,
    one_of,
    read_json,
    read_number,
    read_objects,
    refuse_unknown,
    setting_error,
    whole,
)
from airflow_provider_eaco.provider.options import DEFAULTS, EXAMPLES, SECTION
from airflow_provider_eaco.provider.sleep_settings import SleepSettings, node_sleep

_NVIDIA_DRIVER = Path("/proc/driver/nvidia/version")
# Far below any priority weight, and within what every database stores.
_LEAST_PRIORITY = -1_000_000_000
# Airflow's own limit for the name of a pool.
_MAX_POOL_NAME = 256
# An Airflow pool has the window and the seats of its GPUs as slots, which have to fit its column.
_MAX_HOLD_WINDOW = 1_000_000
_MAX_RESIDENTS = 1000
# A day of simulated time in less than a tenth of a second; energies stay numbers.
_MAX_TIME_SCALE = 1_000_000


@dataclass(frozen=True, slots=True)
class EacoSettings:
    """All of ``[eaco]``. ``default_max_stretch`` is ``None`` for no limit.

    ``host`` is the name of this machine's node with real GPUs, ``has_driver`` whether there is an NVIDIA
    driver, ``gpu_memory_mib`` the memory by GPU model or UUID of GPUs that do not tell theirs;
    ``are_nodes_listed``: the simulated nodes were named one by one. ``home`` is where files of ours lie
    unless they are named.
    """

    pools: tuple[PoolSettings, ...] = (PoolSettings(),)
    hold_window: int = 2000
    backfill_priority: int = 0
    default_max_stretch: float | None = 1.10
    planner_ttl_s: float = 30.0
    kill_grace_s: float = 10.0
    simulated_nodes: tuple[SimulatedNodeSettings, ...] = ()
    simulated_time_scale: float = 600.0
    simulated_state: Path = field(default_factory=lambda: Path("eaco/simulated.json"))
    simulated_truth: tuple[Mapping[str, Any], ...] = ()
    telemetry: GpuSource = GpuSource.AUTO
    gpu_memory_mib: Mapping[str, int] = field(default_factory=dict)
    node_power: NodePowerSettings | None = None
    node_sleep: tuple[SleepSettings, ...] = ()
    carbon_g_per_kwh: float | None = None
    price_per_kwh: float | None = None
    currency: str = ""
    are_nodes_listed: bool = False
    host: str = "host"
    has_driver: bool = False
    series: tuple[SeriesSource, ...] = ()
    dispatch: DispatchChoice = DispatchChoice.LOCAL
    node_timeout_s: float = 60.0
    node_api_url: str = ""
    home: Path = field(default_factory=Path)

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
            raise setting_error(option, f"cannot be read from Airflow's configuration: {error}") from error

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
    shared: dict[str, Any] = {"trial_limit_s": duration_s("trial_limit", read("trial_limit"))}
    shared["reject_after_s"] = _reject_after("reject_after", read("reject_after"))
    named = [series_source(option, read(option)) for option in SERIES]
    max_shift_s = hours_s("max_shift", read("max_shift"))
    shared["shift"] = Shift(max_shift_s) if any(named) else None
    source = gpu_source(read("telemetry"))
    nodes_text, name = read("simulated_nodes"), safe_name(host)
    dispatch = dispatch_choice(read("dispatch"))
    simulates = source is GpuSource.SIMULATED or (
        source is GpuSource.AUTO and not has_driver and dispatch is DispatchChoice.LOCAL
    )
    return EacoSettings(
        pools=_pools(read("pools"), shared),
        hold_window=whole("hold_window", read("hold_window"), most=_MAX_HOLD_WINDOW),
        backfill_priority=_backfill_priority("backfill_priority", read("backfill_priority")),
        default_max_stretch=_stretch(read("default_max_stretch")),
        planner_ttl_s=duration_s("planner_ttl", read("planner_ttl")),
        kill_grace_s=duration_s("kill_grace", read("kill_grace")),
        simulated_nodes=simulated_nodes(nodes_text, f"sim-{name}" if simulates else None),
        simulated_time_scale=_time_scale("simulated_time_scale", read("simulated_time_scale")),
        simulated_state=_state_file(read("simulated_state"), home),
        simulated_truth=read_objects("simulated_truth", read("simulated_truth")),
        telemetry=source,
        **_whole_nodes(read, name),
        **_per_kwh(read),
        are_nodes_listed=nodes_text.strip().lower() not in {"auto", "none"},
        host=name,
        has_driver=has_driver,
        series=tuple(each for each in named if each is not None),
        dispatch=dispatch,
        node_timeout_s=duration_s("node_timeout", read("node_timeout")),
        node_api_url=read("node_api_url").strip().rstrip("/"),
        home=home,
    )


def _whole_nodes(read: Callable[[str], str], host: str) -> dict[str, Any]:
    """Return what this machine's GPUs do not tell, how its power is read, and how other nodes sleep."""
    return {
        "gpu_memory_mib": gpu_memory_mib(read("gpu_memory")),
        "node_power": node_power(read("node_power")),
        "node_sleep": node_sleep(read("node_sleep"), host),
    }


def _per_kwh(read: Callable[[str], str]) -> dict[str, Any]:
    """Return what a kilowatt-hour stands for at this site."""
    return {
        "carbon_g_per_kwh": _optional("carbon_g_per_kwh", read("carbon_g_per_kwh")),
        "price_per_kwh": _optional("price_per_kwh", read("price_per_kwh")),
        "currency": _currency(read("currency")),
    }


def _optional(option: str, text: str) -> float | None:
    return above_0(option, text) if text.strip() else None


def _currency(text: str) -> str:
    if len(text.strip()) > 16 or not text.isprintable():
        raise setting_error("currency", f"{text!r} must be a word of at most 16 characters, such as EUR")
    return text.strip()


def _stretch(text: str) -> float | None:
    if text.strip().lower() in {"none", ""}:
        return None
    allowed = "a number of at least 1, or none for no limit"
    return read_number("default_max_stretch", text, allowed, lambda number: number >= 1)


def _backfill_priority(option: str, value: object) -> int:
    allowed = f"a whole number from {_LEAST_PRIORITY} to 0"
    return int(
        read_number(
            option, value, allowed, lambda number: number.is_integer() and _LEAST_PRIORITY <= number <= 0
        )
    )


def _reject_after(option: str, value: object) -> float:
    if isinstance(value, str) and value.strip().lower() == "never":
        return math.inf
    return read_number(
        option, value, "a number of seconds of at least 0, or never", lambda number: number >= 0
    )


def _state_file(text: str, home: Path) -> Path:
    path = Path(text) if text.strip() else home / "eaco" / "simulated.json"
    if not path.is_absolute() or not text.isprintable():
        raise setting_error("simulated_state", f"{text!r} must be the absolute path of a file, or empty")
    return path


def _pools(text: str, shared: Mapping[str, Any]) -> tuple[PoolSettings, ...]:
    rows = read_json("pools", text)
    if not isinstance(rows, dict) or not rows or not all(isinstance(row, dict) for row in rows.values()):
        raise setting_error(
            "pools",
            "must be a JSON object with at least one entry, pool name -> settings; "
            f"example: {EXAMPLES['pools']}",
        )
    return tuple(_pool(name, row, shared) for name, row in rows.items())


def _pool(name: str, row: Mapping[str, Any], shared: Mapping[str, Any]) -> PoolSettings:
    option = f"pools, {name}"
    if not name.strip() or not name.isprintable() or len(name) > _MAX_POOL_NAME:
        raise setting_error(
            "pools", f"{name!r} must be the name of a pool, of at most {_MAX_POOL_NAME} characters"
        )
    refuse_unknown(option, row, set(_POOL_CHECKS))
    values = {key: _POOL_CHECKS[key](f"{option}, {key}", value) for key, value in row.items()}
    return PoolSettings(name=name, **{**shared, **values})


def _text(option: str, value: object) -> str:
    if not isinstance(value, str) or not value.strip():
        raise setting_error(option, f"{value!r} must be a name")
    return value


def _patterns(option: str, value: object) -> tuple[str, ...]:
    if not isinstance(value, list) or not value or not all(isinstance(item, str) and item for item in value):
        raise setting_error(
            option, f"{value!r} must be a list of node names or shell patterns, such as ['gpu-*']"
        )
    return tuple(value)


def _mean_stretch(option: str, value: object) -> float:
    return read_number(option, value, "a number of at least 1", lambda number: number >= 1)


def _time_scale(option: str, value: object) -> float:
    allowed = f"a number above 0, at most {_MAX_TIME_SCALE:g}"
    return read_number(option, value, allowed, lambda number: 0 < number <= _MAX_TIME_SCALE)


def _residents(option: str, value: object) -> int:
    return whole(option, value, most=_MAX_RESIDENTS)


def _margin(option: str, value: object) -> int:
    return whole(option, value, least=0)


def _share(option: str, value: object) -> float:
    return read_number(option, value, "a number of at least 0", lambda number: number >= 0)


def _priority(option: str, value: object) -> int | None:
    if value is None:
        return None
    return int(read_number(option, value, "a whole number, or null for none", float.is_integer))


def _names(option: str, value: object) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(item, str) and item for item in value):
        raise setting_error(option, f"{value!r} must be a list of names")
    return tuple(value)


def _flag(option: str, value: object) -> bool:
    if not isinstance(value, bool):
        raise setting_error(option, f"{value!r} must be true or false")
    return value


def _fair_share(option: str, value: object) -> FairShare:
    if not isinstance(value, dict):
        raise setting_error(option, f"{value!r} must be a JSON object")
    refuse_unknown(option, value, {"by", "half_life_s", "shares", "quotas_gpu_h", "borrowing"})
    return FairShare(
        by=one_of(TeamSource)(f"{option}, by", value.get("by", TeamSource.POOL)),
        half_life_s=above_0(f"{option}, half_life_s", value.get("half_life_s", FairShare().half_life_s)),
        shares=_by_team(f"{option}, shares", value.get("shares", {})),
        quotas_gpu_h=_by_team(f"{option}, quotas_gpu_h", value.get("quotas_gpu_h", {})),
        borrowing=_flag(f"{option}, borrowing", value.get("borrowing", True)),
    )


def _by_team(option: str, value: object) -> tuple[tuple[str, float], ...]:
    if not isinstance(value, dict):
        raise setting_error(option, f"{value!r} must be a JSON object: team -> number")
    return tuple((team, above_0(f"{option}, {team}", number)) for team, number in value.items())


def _demand(option: str, value: object) -> tuple[DemandCurve, ...]:
    if not isinstance(value, dict):
        raise setting_error(
            option, f"{value!r} must be a JSON object: node -> 24 numbers of GPUs, one an hour (UTC)"
        )
    curves = []
    for node, hours in value.items():
        if not isinstance(hours, list) or len(hours) != 24:
            raise setting_error(f"{option}, {node}", f"{hours!r} must be a list of 24 numbers of GPUs")
        gpus = tuple(whole(f"{option}, {node}", number, least=0) for number in hours)
        curves.append(DemandCurve(node, gpus))
    return tuple(curves)


_POOL_CHECKS: Mapping[str, Callable[[str, object], Any]] = {
    "nodes": _patterns,
    "mode": one_of(PoolMode),
    "policy": _text,
    "ordering": _text,
    "spreading": one_of(Spreading),
    "max_residents": _residents,
    "memory_margin_mib": _margin,
    "utilisation_limit_pct": above_0,
    "exclusive_priority": _priority,
    "trial_limit_s": duration_s,
    "estimate_error": _share,
    "predictor": one_of(PredictorName),
    "reject_after_s": _reject_after,
    "rules": _names,
    "ageing_s": duration_s,
    "reserve_after_s": _share,
    "fair_share": _fair_share,
    "aligned": _flag,
    "demand": _demand,
    "strangers": one_of(StrangerAction),
    "memory_growth": one_of(MemoryGrowth),
    "mean_stretch": _mean_stretch,
    "power_limits": one_of(PowerLimits),
    "prices": one_of(Prices),
    "energy_budget": energy_budget,
    "shift": shift,
}
