"""Sets power limits through NVML: the one place that changes anything about a board.

It runs in a process of its own for each request (:mod:`.limit_process` starts it), as reading does: a call
into a driver may hang or crash. The process reads one request from standard input and writes one answer.
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any, TextIO

from airflow_provider_eaco.core.model.board_limits import LimitAnswer, LimitRequest
from airflow_provider_eaco.core.model.errors import EacoError
from airflow_provider_eaco.core.model.instruction import SetPowerLimit
from airflow_provider_eaco.core.model.placement import Placement
from airflow_provider_eaco.telemetry.board_limits import BoardError, carry_out
from airflow_provider_eaco.telemetry.limit_book import LimitBook

NO_PERMISSION = "there is no permission to set power limits, which NVML grants to root alone"


class NvmlBoards:
    """The whole GPUs that NVML lists.

    :raises BoardError: if NVML cannot be started.
    """

    def __init__(self) -> None:
        self._nvml: Any = importlib.import_module("pynvml")
        try:
            self._nvml.nvmlInit()
        except self._nvml.NVMLError as error:
            raise BoardError(f"NVML cannot be started: {error}") from error
        self._handles = self._listed()

    def close(self) -> None:
        """Give NVML back."""
        try:
            self._nvml.nvmlShutdown()
        except self._nvml.NVMLError:
            return

    def limit_w(self, uuid: str) -> float:
        return float(self._ask("nvmlDeviceGetPowerManagementLimit", uuid)) / 1000

    def span_w(self, uuid: str) -> tuple[float, float]:
        least_mw, most_mw = self._ask("nvmlDeviceGetPowerManagementLimitConstraints", uuid)
        return least_mw / 1000, most_mw / 1000

    def is_divided(self, uuid: str) -> bool:
        try:
            return bool(self._nvml.nvmlDeviceGetMigMode(self._handle(uuid))[0])
        except self._nvml.NVMLError as error:
            if error.value == self._nvml.NVML_ERROR_NOT_SUPPORTED:
                return False
            raise BoardError(str(error)) from error

    def set_limit_w(self, uuid: str, limit_w: float) -> None:
        self._ask("nvmlDeviceSetPowerManagementLimit", uuid, round(limit_w * 1000))

    def _listed(self) -> dict[str, Any]:
        nvml, found = self._nvml, {}
        try:
            count = nvml.nvmlDeviceGetCount()
        except nvml.NVMLError as error:
            raise BoardError(f"NVML lists no GPUs: {error}") from error
        for index in range(count):
            try:
                handle = nvml.nvmlDeviceGetHandleByIndex(index)
                found[nvml.nvmlDeviceGetUUID(handle)] = handle
            except nvml.NVMLError:  # a card that is lost is no reason to leave the others as they are
                continue
        return found

    def _handle(self, uuid: str) -> Any:
        try:
            return self._handles[uuid]
        except KeyError:
            raise BoardError("this machine's NVML lists no whole GPU of that UUID") from None

    def _ask(self, function: str, uuid: str, *arguments: Any) -> Any:
        try:
            return getattr(self._nvml, function)(self._handle(uuid), *arguments)
        except self._nvml.NVMLError as error:
            denied = error.value == self._nvml.NVML_ERROR_NO_PERMISSION
            raise BoardError(f"{NO_PERMISSION} ({error})" if denied else str(error)) from error


def answer_request(book_path: Path, source: TextIO, out: TextIO) -> int:
    """Carry out the request in ``source`` and write the answer to ``out``; return the exit code 0."""
    request = request_from(json.load(source))
    boards: NvmlBoards | None = None
    try:
        boards = NvmlBoards()
        answer = carry_out(request, boards, LimitBook(book_path))
    except (EacoError, OSError, ImportError) as error:
        answer = LimitAnswer(problem=str(error))
    finally:
        if boards is not None:
            boards.close()
    json.dump(_plain(answer), out)
    return 0


def request_text(request: LimitRequest) -> str:
    """Return the request as :func:`request_from` reads it."""
    return json.dumps(asdict(request))


def request_from(row: dict[str, Any]) -> LimitRequest:
    """Return the request of a decoded :func:`request_text`."""
    return LimitRequest(
        tuple(_placement(each) for each in row["held"]),
        tuple(SetPowerLimit(_placement(each["placement"]), each["limit_w"]) for each in row["changes"]),
        tuple(row["asked"]),
    )


def answer_from(text: str) -> LimitAnswer:
    """Return the answer that :func:`answer_request` wrote.

    :raises ValueError: if it is none.
    """
    try:
        row = json.loads(text)
        refused = {_placement(each): cause for each, cause in row.pop("refused")}
        return LimitAnswer(refused=refused, **row)
    except (ValueError, TypeError, LookupError, AttributeError) as error:
        raise ValueError(f"not an answer: {error!r}") from error


def _plain(answer: LimitAnswer) -> dict[str, Any]:
    to_row: Callable[[Placement], dict[str, Any]] = asdict
    return {
        "refused": [(to_row(placement), cause) for placement, cause in answer.refused.items()],
        "unable": dict(answer.unable),
        "restored": dict(answer.restored),
        "taken": dict(answer.taken),
        "stuck": dict(answer.stuck),
        "problem": answer.problem,
    }


def _placement(row: dict[str, Any]) -> Placement:
    return Placement(row["node"], tuple(row["gpu_uuids"]))
