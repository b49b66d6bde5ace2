"""How nodes are put to sleep and woken: the option ``node_sleep``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from airflow_provider_eaco.provider.node_settings import is_node_name
from airflow_provider_eaco.provider.option_values import above_0, read_json, refuse_unknown, setting_error
from airflow_provider_eaco.provider.options import EXAMPLES

OPTION = "node_sleep"


@dataclass(frozen=True, slots=True)
class SleepSettings:
    """The commands for one node, each a program with its arguments, and times in seconds.

    ``idle_s`` of ``None``: the node is put to sleep only when a policy says so.
    """

    node: str
    sleep: tuple[str, ...]
    wake: tuple[str, ...]
    idle_s: float | None = None
    wake_timeout_s: float = 600.0
    command_timeout_s: float = 30.0


def node_sleep(text: str, host: str) -> tuple[SleepSettings, ...]:
    """Return the settings of each node that is named, none for an empty text.

    :param host: the scheduler's own machine, which cannot put itself to sleep.
    :raises InvalidSettingError: naming what cannot be used.
    """
    if not text.strip():
        return ()
    rows = read_json(OPTION, text)
    if not isinstance(rows, dict) or not all(isinstance(row, dict) for row in rows.values()):
        raise setting_error(OPTION, f"must be a JSON object, node -> settings; example: {EXAMPLES[OPTION]}")
    return tuple(_of_node(node, row, host) for node, row in rows.items())


def _of_node(node: str, row: Mapping[str, Any], host: str) -> SleepSettings:
    option = f"{OPTION}, {node}"
    if not is_node_name(node):
        raise setting_error(OPTION, f"{node!r} must be the name of a node")
    if node == host:
        raise setting_error(option, "is the scheduler's own machine, which cannot be put to sleep")
    refuse_unknown(option, row, {"sleep", "wake", "idle_s", "wake_timeout_s", "command_timeout_s"})
    idle_s = row.get("idle_s")
    times = {
        name: above_0(f"{option}, {name}", row[name])
        for name in ("wake_timeout_s", "command_timeout_s")
        if name in row
    }
    return SleepSettings(
        node,
        _command(f"{option}, sleep", row.get("sleep")),
        _command(f"{option}, wake", row.get("wake")),
        None if idle_s is None else above_0(f"{option}, idle_s", idle_s),
        **times,
    )


def _command(option: str, value: object) -> tuple[str, ...]:
    words = value if isinstance(value, list) else []
    if not words or not all(isinstance(word, str) and "\0" not in word for word in words) or not words[0]:
        raise setting_error(
            option, f'{value!r} must be a list of a program and its arguments, such as ["wakeonlan", "..."]'
        )
    return tuple(words)
