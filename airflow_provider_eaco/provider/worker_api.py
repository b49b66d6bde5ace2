"""How a node speaks to the provider's API: two requests, each with the node's credential."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import asdict
from functools import partial
from typing import Any

import requests

from airflow_provider_eaco.core.energy.records import MachineEnergy
from airflow_provider_eaco.core.model.board_limits import NodeLimits
from airflow_provider_eaco.core.model.errors import EacoError
from airflow_provider_eaco.core.model.gpu import ForeignProcess, Gpu, GpuReading
from airflow_provider_eaco.core.model.placement import Placement
from airflow_provider_eaco.core.node_runs import (
    FORMATS,
    NodeAnswer,
    NodeReport,
    RunClaim,
    RunNews,
    RunState,
    ValidRun,
)

log = logging.getLogger(__name__)

_TIMEOUT_S = (3.0, 10.0)
_OK, _NOT_UNDERSTOOD = 200, 422

# As long as the API takes.
_MAX_ORIGIN = 255
_MAX_USER = 64


class NodeApiError(EacoError):
    """The API cannot be reached, or does not take what was sent; ``is_refusal`` tells which."""

    def __init__(self, text: str, *, is_refusal: bool) -> None:
        super().__init__(text)
        self.is_refusal = is_refusal


class NodeApi:
    """The API as one node sees it.

    :param url: where the provider's API for nodes is mounted.
    """

    def __init__(self, url: str, node: str, machine: str, credential: str) -> None:
        self._url = f"{url}/{node}"
        self._node = node
        self._machine = machine
        self._session = requests.Session()
        # A .netrc entry for the same host would replace the credential.
        self._session.trust_env = False
        self._session.headers["Authorization"] = f"Bearer {credential}"
        self._format = FORMATS[-1]
        #: How often the API wants to hear of this node.
        self.interval_s = 1.0

    def claim(self, job_id: str, token: int) -> RunClaim | None:
        """Ask whether the run of this lease may begin here; return it, or ``None`` if it may not.

        :raises NodeApiError: without an answer that says so.
        """
        asked = {"machine": self._machine, "token": token, "job_id": job_id}
        answer = self._post("starts", lambda version: {"v": version, **asked})
        if answer.get("start") is not True:
            return None
        return RunClaim(
            job_id,
            token,
            answer["family"],
            Placement(self._node, tuple(answer["gpu_uuids"])),
            alone=answer.get("alone", False),
            memory_margin_mib=answer.get("memory_margin_mib"),
            power_limit_w=answer.get("power_limit_w"),
        )

    def report(self, report: NodeReport) -> NodeAnswer:
        """Tell how the node is and return what it may run and to what its boards are to be held.

        :raises NodeApiError: if the report was not taken.
        """
        answer = self._post("report", partial(_as_json, report))
        newest = min(int(answer.get("newest", self._format)), FORMATS[-1])
        self._format = max(self._format, newest)
        self.interval_s = float(answer.get("interval_s", self.interval_s))
        runs = tuple(_valid_run(self._node, run) for run in answer["runs"])
        return NodeAnswer(runs, _limits_w(self._node, answer.get("limits")))

    def close(self) -> None:
        """Close the connection."""
        self._session.close()

    def _post(self, what: str, body_in: Callable[[int], Mapping[str, Any]]) -> dict[str, Any]:
        """Return the answer, in the newest format that both sides know."""
        answer, told = self._send(what, body_in(self._format))
        while answer.status_code == _NOT_UNDERSTOOD and self._format > FORMATS[0]:
            log.warning("The API does not take format %s, an older one is tried", self._format)
            self._format -= 1
            answer, told = self._send(what, body_in(self._format))
        if answer.status_code == _OK and told is not None and told.get("v") == self._format:
            return told
        said = answer.text[:300]
        is_refusal = 400 <= answer.status_code < 500
        raise NodeApiError(f"{self._url}/{what} answers {answer.status_code}: {said}", is_refusal=is_refusal)

    def _send(self, what: str, body: Mapping[str, Any]) -> tuple[requests.Response, dict[str, Any] | None]:
        try:
            answer = self._session.post(
                f"{self._url}/{what}", json=body, timeout=_TIMEOUT_S, allow_redirects=False
            )
            return answer, answer.json() if answer.status_code == _OK else None
        except (requests.RequestException, ValueError) as error:
            raise NodeApiError(f"{self._url} cannot be reached: {error}", is_refusal=False) from error


def _as_json(report: NodeReport, version: int = FORMATS[-1]) -> dict[str, Any]:
    told = {"v": version, **_in_any_format(report)}
    if version > 2:
        told["limits"] = _limits_as_json(report.limits or NodeLimits())
        for shown, reading in zip(told["readings"], report.readings, strict=True):
            shown["foreign_by"] = [_foreign_as_json(each) for each in reading.foreign_by]
    return told


def _in_any_format(report: NodeReport) -> dict[str, Any]:
    node = report.node
    return {
        "machine": report.machine,
        "available": node.available,
        "host_memory_mib": node.host_memory_mib,
        "time_scale": node.time_scale,
        "gpus": [_gpu_as_json(gpu) for gpu in node.gpus],
        "readings": [_reading_as_json(reading) for reading in report.readings],
        "news": [_news_as_json(news) for news in report.news],
        "living": [{"job_id": job_id, "token": token} for job_id, token in report.living],
        "energy": [
            {
                "token": part.token,
                "gpu_uuid": part.gpu_uuid,
                "energy_j": part.energy_j,
                "seconds": part.seconds,
                "method": part.method.value,
                "partial": part.partial,
            }
            for part in report.energy
        ],
        "notes": [
            {"token": note.token, "peak_w": note.peak_w, "rules": sorted(rule.value for rule in note.rules)}
            for note in report.notes
        ],
        "counters": None if report.counters is None else _counters_as_json(report.counters),
        "peaks": [{"token": token, "memory_mib": peak_mib} for token, peak_mib in report.peaks_mib],
    }


def _limits_as_json(limits: NodeLimits) -> dict[str, Any]:
    boards: list[dict[str, Any]] = []
    for placement in sorted(limits.noted, key=lambda placement: placement.gpu_uuids):
        limit = limits.in_force.get(placement)
        board: dict[str, Any] = {"gpu_uuids": list(placement.gpu_uuids)}
        if limit is not None:
            board |= {"limit_w": limit.limit_w, "before_w": list(limit.before_w)}
        boards.append(board)
    permits = {uuid: None if cause is None else _printable(cause) for uuid, cause in limits.permits.items()}
    refused = [
        {"gpu_uuids": list(placement.gpu_uuids), "cause": _printable(cause)}
        for placement, cause in limits.refused.items()
    ]
    return {"permits": permits, "boards": boards, "refused": refused}


def _gpu_as_json(gpu: Gpu) -> dict[str, Any]:
    return {
        "uuid": gpu.uuid,
        "index": gpu.index,
        "model": gpu.model,
        "memory_total_mib": gpu.memory_total_mib,
        "memory_reserved_mib": gpu.memory_reserved_mib,
        "health": gpu.health.value,
    }


def _reading_as_json(reading: GpuReading) -> dict[str, Any]:
    return {
        "uuid": reading.uuid,
        "utilisation_pct": _percent(reading.utilisation_pct),
        "memory_used_mib": reading.memory_used_mib,
        "power_w": reading.power_w,
        "energy_j": reading.energy_j,
        "foreign_memory_mib": reading.foreign_memory_mib,
        "foreign_processes": reading.foreign_processes,
    }


def _foreign_as_json(process: ForeignProcess) -> dict[str, Any]:
    user = None if process.user is None else _printable(process.user)[:_MAX_USER]
    return {"pid": process.pid, "user": user or None}


def _counters_as_json(counters: MachineEnergy) -> dict[str, Any]:
    return {
        "origin": counters.origin[:_MAX_ORIGIN],
        "began_s": counters.began_s,
        "until_s": counters.until_s,
        "devices": [{"uuid": uuid, **asdict(totals)} for uuid, totals in counters.devices.items()],
        **asdict(counters.totals),
    }


def _news_as_json(news: RunNews) -> dict[str, Any]:
    told: dict[str, Any] = {
        "token": news.token,
        "state": news.state.value,
        "process": news.process,
        "exit_code": news.exit_code,
        "cause": None if news.cause is None else _printable(news.cause),
    }
    if news.meter is not None:
        meter = news.meter
        told["meter"] = {
            "memory_peak_mib": meter.memory_peak_mib,
            "utilisation_pct": _percent(meter.utilisation_pct),
            "utilisation_max_pct": _percent(meter.utilisation_max_pct),
            "memory_utilisation_pct": _percent(meter.memory_utilisation_pct),
            "power_w": meter.power_w,
            "scope": meter.scope.value,
        }
    return told


def _percent(value: float | None) -> float | None:
    # Sums of rounded shares may pass 100 by a hair.
    return None if value is None else min(value, 100.0)


def _printable(text: str) -> str:
    return "".join(character if character.isprintable() else " " for character in text)[:1000]


def _limits_w(node: str, limits: list[Mapping[str, Any]] | None) -> dict[Placement, float] | None:
    if limits is None:
        return None
    return {Placement(node, tuple(each["gpu_uuids"])): float(each["limit_w"]) for each in limits}


def _valid_run(node: str, run: Mapping[str, Any]) -> ValidRun:
    return ValidRun(
        job_id=run["job_id"],
        token=run["token"],
        family=run["family"],
        placement=Placement(node, tuple(run["gpu_uuids"])),
        memory_mib=run["gpu_memory_mib"],
        granted_s=run["granted_s"],
        state=RunState(run["state"]),
        stop=run["stop"],
        grace_s=run["grace_s"],
    )
