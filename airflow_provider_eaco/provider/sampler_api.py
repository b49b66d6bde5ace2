"""How a sampler speaks to the provider's API: its machine as a worker tells of one, and the tasks there."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from airflow_provider_eaco.core.observed import ObservedReport, ObservedTask
from airflow_provider_eaco.provider.worker_api import NodeApi, NodeApiError

_VERSION = 1
_OK = 200


class SamplerApi(NodeApi):
    """The API as the sampler of one node sees it."""

    def observe(self, report: ObservedReport) -> frozenset[str]:
        """Tell what was seen and return the job ids of the tasks that nobody wants to hear of.

        :raises NodeApiError: if the report was not taken.
        """
        answer, told = self._send("observed", _as_json(report))
        if answer.status_code != _OK or told is None or told.get("v") != _VERSION:
            raise NodeApiError(
                f"{self._url}/observed answers {answer.status_code}: {answer.text[:300]}",
                is_refusal=400 <= answer.status_code < 500,
            )
        return frozenset(map(str, told["not_observed"]))


def _as_json(report: ObservedReport) -> dict[str, Any]:
    return {"v": _VERSION, "machine": report.machine, "tasks": [_task_as_json(task) for task in report.tasks]}


def _task_as_json(task: ObservedTask) -> dict[str, Any]:
    return {
        "job_id": task.job_id,
        "process": task.process,
        "pids": list(task.pids),
        "gpu_uuids": list(task.gpu_uuids),
        "running_s": task.running_s,
        "from_start": task.from_start,
        "alone": task.alone,
        "ended_s": task.ended_s,
        "energy": [
            {
                "gpu_uuid": part.gpu_uuid,
                "energy_j": part.energy_j,
                "seconds": part.seconds,
                "method": part.method.value,
                "partial": part.partial,
            }
            for part in task.energy
        ],
        "peak_w": None if task.note is None else task.note.peak_w,
        "rules": [] if task.note is None else sorted(rule.value for rule in task.note.rules),
        "meter": None if task.meter is None else _meter_as_json(asdict(task.meter)),
    }


def _meter_as_json(meter: dict[str, Any]) -> dict[str, Any]:
    # Sums of rounded shares may pass 100 by a hair.
    return {
        name: min(value, 100.0) if name.endswith("_pct") and value is not None else value
        for name, value in meter.items()
    }
