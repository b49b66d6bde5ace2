"""The power of a whole node from an HTTP source that its operator has: a BMC's Redfish, or Prometheus.

It is asked by a thread of its own, so that a slow or dead source costs nobody anything; what it does not
answer is unknown. Credentials come from the ``.netrc`` of the user, as with every call of ``requests``.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import Any

import requests

from airflow_provider_eaco.core.energy.accounting import DeviceLook

INTERVAL_S = 10.0
TIMEOUT_S = 5.0
# No server takes more; a source that says so speaks of something else.
MAX_NODE_W = 100_000.0

log = logging.getLogger(__name__)


class SourceKind(StrEnum):
    """What answers: Redfish's power of a chassis, or a query to Prometheus that gives one number of W."""

    REDFISH = "redfish"
    PROMETHEUS = "prometheus"


class HttpNodePower:
    """Asks the source every ``interval_s``.

    :param url: of Redfish the resource (``.../Chassis/1/Power``, ``.../EnvironmentMetrics`` or a sensor), of
        Prometheus its root.
    :param query: what Prometheus is asked.
    """

    def __init__(
        self,
        node: str,
        kind: SourceKind,
        url: str,
        query: str | None = None,
        *,
        interval_s: float = INTERVAL_S,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._node = node
        self._kind = kind
        self._url = url
        self._query = query
        self._interval_s = interval_s
        self._monotonic = monotonic
        self._last: DeviceLook | None = None
        self._problem: str | None = None
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def look(self) -> DeviceLook | None:
        return self._last

    def close(self) -> None:
        self._closing.set()

    def _run(self) -> None:
        while not self._closing.is_set():
            self._ask()
            self._closing.wait(self._interval_s)

    def _ask(self) -> None:
        query = {} if self._query is None else {"query": self._query}
        url = f"{self._url.rstrip('/')}/api/v1/query" if self._kind is SourceKind.PROMETHEUS else self._url
        problem = None
        try:
            answer = requests.get(url, params=query, timeout=TIMEOUT_S, allow_redirects=False)
            answer.raise_for_status()
            power_w = parse_power_w(self._kind, answer.json())
            self._last = DeviceLook(self._node, self._monotonic(), power_w)
        except Exception as error:  # noqa: BLE001 - whatever it is, the node's power is not known now
            problem = f"{type(error).__name__}: {error}"
        if problem is not None and self._problem is None:
            log.warning("The node's power is not known: node=%s cause=%s", self._node, problem)
        self._problem = problem


def parse_power_w(kind: SourceKind, answer: Any) -> float:
    """Return the power in an answer.

    :raises ValueError: if there is none in it, or not exactly one, or one that cannot be true.
    """
    found = _redfish(answer) if kind is SourceKind.REDFISH else _prometheus(answer)
    try:
        power_w = float(found)
    except (TypeError, ValueError):
        power_w = math.nan
    if not 0 < power_w <= MAX_NODE_W:
        raise ValueError(f"{found!r} is no power of a node in W")
    return power_w


def _redfish(answer: Any) -> Any:
    """Return the power of a Power, EnvironmentMetrics or Sensor resource."""
    match answer:
        case {"PowerControl": [{"PowerConsumedWatts": power_w}, *_]}:
            return power_w
        case {"PowerWatts": {"Reading": power_w}}:
            return power_w
        case {"Reading": power_w, "ReadingUnits": "W"}:
            return power_w
    raise ValueError("no PowerControl, PowerWatts or Reading in W in the answer")


def _prometheus(answer: Any) -> Any:
    match answer:
        case {"data": {"result": [{"value": [_, power_w]}]}}:
            return power_w
        case {"data": {"result": Mapping() | [*_] as rows}}:
            raise ValueError(f"the query gives {len(rows)} values, not one")
    raise ValueError("no result of a query in the answer")
