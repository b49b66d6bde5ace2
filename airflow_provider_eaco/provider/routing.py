"""Which executor and pool a task with a GPU request goes to, as the configuration says when a DAG is parsed.

Everything here is lenient: a DAG file must parse and its tasks must run where the provider is switched off or
its section is broken; the executor is the one who complains about settings.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

from airflow_provider_eaco.provider.options import DEFAULTS, SECTION

EXECUTOR_CLASS = "EacoExecutor"
FIRST_POOL = "eaco"

_PACKAGE = "airflow_provider_eaco."


@dataclass(frozen=True, slots=True)
class Route:
    """Where GPU tasks go by default. ``executor`` is ``None`` where ours is Airflow's default one."""

    executor: str | None
    pool: str


def configured_route() -> Route | None:
    """Return where GPU tasks go by the configuration, or ``None`` where EacoExecutor is not configured."""
    from airflow.sdk.configuration import conf

    names = executor_names(conf.get("core", "executor", fallback=""))
    ours = [name for name, path in names if is_ours(path)]
    if not ours:
        return None
    first = names[0]
    executor = None if is_ours(first[1]) else ours[0]
    return Route(executor, first_pool(conf.get(SECTION, "pools", fallback=DEFAULTS["pools"])))


def executor_names(setting: str) -> list[tuple[str, str]]:
    """Return (name for ``executor=``, module path) of the executors that every team can use.

    >>> executor_names("LocalExecutor, gpu:airflow_provider_eaco.EacoExecutor; blue=CeleryExecutor")
    [('LocalExecutor', 'LocalExecutor'), ('gpu', 'airflow_provider_eaco.EacoExecutor')]
    """
    found = []
    for team in setting.split(";"):
        if "=" in team.lstrip("="):
            continue
        for entry in team.lstrip("=").split(","):
            alias, _, path = entry.strip().rpartition(":")
            if path:
                found.append((alias or path.rsplit(".", 1)[-1], path))
    return found


def is_ours(path: str) -> bool:
    """Tell whether the module path names EacoExecutor."""
    return path.startswith(_PACKAGE) and path.rsplit(".", 1)[-1] == EXECUTOR_CLASS


def names_ours(executor: str) -> bool:
    """Tell whether a task's ``executor=`` (class name, path or configured alias) means EacoExecutor."""
    from airflow.sdk.configuration import conf

    if executor == EXECUTOR_CLASS or is_ours(executor):
        return True
    aliases = dict(executor_names(conf.get("core", "executor", fallback="")))
    return is_ours(aliases.get(executor, ""))


def first_pool(setting: str) -> str:
    """Return the name of the first GPU pool in the text of ``[eaco] pools``."""
    try:
        pools = json.loads(setting)
    except ValueError:
        return FIRST_POOL
    return str(next(iter(pools))) if isinstance(pools, dict) and pools else FIRST_POOL
