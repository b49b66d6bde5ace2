"""A worker and an API of neighbouring versions speak the newest format that both know."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from airflow_provider_eaco.core.model.board_limits import NodeLimits
from airflow_provider_eaco.core.model.gpu import ForeignProcess, Gpu, GpuReading, Node
from airflow_provider_eaco.core.model.placement import Placement
from airflow_provider_eaco.core.node_runs import NodeAnswer, NodeReport
from airflow_provider_eaco.provider.node_api.models import REPORTS
from airflow_provider_eaco.provider.worker_api import NodeApi, NodeApiError

REPORT = NodeReport(Node("gpu-1", ()), "host", limits=NodeLimits({"GPU-1": None}))


class OtherApi:
    """An API that takes some formats and names the newest, unless it is so old that it names none."""

    def __init__(self, *formats: int, names: bool = False) -> None:
        self.formats, self.names = formats, names
        self.asked: list[dict[str, Any]] = []
        self.more: dict[str, Any] = {}

    def answer(self, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        self.asked.append(body)
        if body["v"] not in self.formats:
            return 422, {"detail": "not a request of this version: v"}
        told = {"newest": self.formats[-1]} if self.names else {}
        answer = {"v": body["v"], "start": False, "interval_s": 2.0, "runs": []}
        return 200, {**answer, **told, **self.more}

    @property
    def formats_asked(self) -> list[int]:
        return [body["v"] for body in self.asked]

    @contextmanager
    def served(self) -> Iterator[NodeApi]:
        """Give a worker's side of it."""
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                status, told = outer.answer(body)
                text = json.dumps(told).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(text)))
                self.end_headers()
                self.wfile.write(text)

            def log_message(self, *arguments: object) -> None:
                """Say nothing."""

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        api = NodeApi(f"http://127.0.0.1:{server.server_port}", "gpu-1", "host", "credential")
        try:
            yield api
        finally:
            api.close()
            server.shutdown()
            server.server_close()
            thread.join()


def test_an_api_that_is_one_version_older_is_spoken_to_in_its_own() -> None:
    """It is found once, and the old format has nothing that it would refuse."""
    other = OtherApi(2)
    with other.served() as api:
        assert api.claim("job", 7) is None
        assert api.report(REPORT) == NodeAnswer(())
    assert other.formats_asked == [3, 2, 2]
    assert "limits" not in other.asked[-1]


def test_c34_who_else_is_on_a_gpu_is_told_in_the_newest_format_alone() -> None:
    """With the pid and, where it is known and can be written, the user; an older API would refuse it."""
    by = (ForeignProcess(7, "al\x00ice"), ForeignProcess(8, None), ForeignProcess(9, "u" * 100))
    reading = GpuReading("GPU-1", 0.0, foreign_memory_mib=9000, foreign_processes=3, foreign_by=by)
    node = Node("gpu-1", (Gpu("GPU-1", "gpu-1", 0, "V100", 16384),))
    report, other = replace(REPORT, node=node, readings=(reading,)), OtherApi(2, 3)
    with other.served() as api:
        api.report(report)
        other.formats = (2,)
        api.report(report)
    newest, _, older = other.asked
    assert newest["readings"][0]["foreign_by"] == [
        {"pid": 7, "user": "al ice"},
        {"pid": 8, "user": None},
        {"pid": 9, "user": "u" * 64},
    ]
    assert older["readings"] == [
        {name: value for name, value in newest["readings"][0].items() if name != "foreign_by"}
    ]
    (taken,) = REPORTS.validate_python(newest).as_report("gpu-1").readings
    assert [(each.pid, each.user) for each in taken.foreign_by] == [(7, "al ice"), (8, None), (9, "u" * 64)]


def test_a_worker_comes_back_to_the_newest_format() -> None:
    """An API that was brought up to date meanwhile says so in its answers."""
    other = OtherApi(2)
    with other.served() as api:
        api.report(REPORT)
        other.formats, other.names = (2, 3, 4), True
        api.report(REPORT)
        api.report(REPORT)
    assert other.formats_asked == [3, 2, 2, 3]
    assert other.asked[-1]["limits"] == {"permits": {"GPU-1": None}, "boards": [], "refused": []}


def test_an_api_that_takes_neither_format_refuses() -> None:
    """The worker says so instead of going on in silence."""
    with OtherApi(4).served() as api, pytest.raises(NodeApiError, match="422") as refused:
        api.report(REPORT)
    assert refused.value.is_refusal


@pytest.mark.parametrize(
    ("limits", "limits_w"),
    [
        (None, None),
        ([], {}),
        (
            [{"gpu_uuids": ["GPU-1", "GPU-2"], "limit_w": 200}],
            {Placement("gpu-1", ("GPU-1", "GPU-2")): 200.0},
        ),
    ],
)
def test_limits_are_those_of_the_own_boards(
    limits: list[dict[str, Any]] | None, limits_w: dict[Placement, float] | None
) -> None:
    """That nobody limits anything is something else than that nothing is limited now."""
    other = OtherApi(2, 3)
    other.more = {"limits": limits}
    with other.served() as api:
        assert api.report(REPORT) == NodeAnswer((), limits_w)


def test_a_start_has_its_limit() -> None:
    """As the API tells it, and none where it tells none."""
    other = OtherApi(2, 3)
    other.more = {"start": True, "family": "J1", "gpu_uuids": ["GPU-1"]}
    with other.served() as api:
        plain = api.claim("job", 7)
        other.more["power_limit_w"] = 200.0
        held = api.claim("job", 7)
    assert plain is not None
    assert held == replace(plain, power_limit_w=200.0)
    assert plain.power_limit_w is None
