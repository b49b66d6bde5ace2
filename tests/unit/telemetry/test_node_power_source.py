"""The power of a whole node over HTTP: what is understood, and that nothing of it reaches anybody else."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from airflow_provider_eaco.telemetry.node_power_source import HttpNodePower, SourceKind, parse_power_w

REDFISH, PROMETHEUS = SourceKind.REDFISH, SourceKind.PROMETHEUS


def vector(*values: Any) -> dict[str, Any]:
    return {"status": "success", "data": {"result": [{"metric": {}, "value": [0, each]} for each in values]}}


@pytest.mark.parametrize(
    ("kind", "answer", "power_w"),
    [
        (REDFISH, {"PowerControl": [{"PowerConsumedWatts": 812}]}, 812),
        (REDFISH, {"PowerWatts": {"Reading": 812.5, "DataSourceUri": "/x"}}, 812.5),
        (REDFISH, {"Reading": 812, "ReadingUnits": "W", "ReadingType": "Power"}, 812),
        (PROMETHEUS, vector("812.5"), 812.5),
    ],
)
def test_the_forms_of_an_answer(kind: SourceKind, answer: Any, power_w: float) -> None:
    """Three resources of Redfish and an instant query are understood."""
    assert parse_power_w(kind, answer) == power_w


@pytest.mark.parametrize(
    ("kind", "answer"),
    [
        (REDFISH, {}),
        (REDFISH, []),
        (REDFISH, {"PowerControl": []}),
        (REDFISH, {"PowerControl": [{"PowerConsumedWatts": None}]}),
        (REDFISH, {"Reading": 35, "ReadingUnits": "Cel"}),
        (REDFISH, {"PowerWatts": {"Reading": 0}}),
        (PROMETHEUS, vector()),
        (PROMETHEUS, vector("400", "400")),
        (PROMETHEUS, vector("NaN")),
        (PROMETHEUS, vector("-1")),
        (PROMETHEUS, vector("1e9")),
        (PROMETHEUS, {"status": "error"}),
        (PROMETHEUS, "no"),
    ],
    ids=str,
)
def test_an_answer_without_one_true_power_is_refused(kind: SourceKind, answer: Any) -> None:
    """Nothing is guessed: no power, several, or one that cannot be true is an error that says so."""
    with pytest.raises(ValueError, match=r".+"):
        parse_power_w(kind, answer)


class Bmc(BaseHTTPRequestHandler):
    """Answers with what the test has put there."""

    answer: tuple[int, str] = (200, "{}")
    asked: list[str]

    def do_GET(self) -> None:
        type(self).asked.append(self.path)
        status, text = type(self).answer
        self.send_response(status)
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, *args: Any) -> None:
        """Be quiet."""


@pytest.fixture
def bmc() -> Iterator[tuple[type[Bmc], str]]:
    """A server on loopback, and its URL."""
    kind = type("ThisBmc", (Bmc,), {"asked": []})
    server = HTTPServer(("127.0.0.1", 0), kind)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    yield kind, f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    thread.join()
    server.server_close()


def wait_for(holds: Any) -> None:
    deadline_s = time.monotonic() + 20
    while not holds():
        assert time.monotonic() < deadline_s
        time.sleep(0.01)


def test_the_power_is_read_again_and_again(bmc: tuple[type[Bmc], str]) -> None:
    """The last reading is there at once; an answer that says nothing leaves the last one with its age."""
    server, url = bmc
    server.answer = (200, json.dumps({"PowerControl": [{"PowerConsumedWatts": 812}]}))
    source = HttpNodePower("n1", REDFISH, f"{url}/redfish/v1/Chassis/1/Power", interval_s=0.01)
    wait_for(lambda: source.look() is not None)
    first = source.look()
    assert first is not None
    assert (first.uuid, first.power_w, first.energy_j) == ("n1", 812, None)
    wait_for(lambda: (source.look() or first).at_s > first.at_s)
    server.answer = (500, "no")
    count = len(server.asked)
    wait_for(lambda: len(server.asked) > count + 2)
    kept = source.look()
    count = len(server.asked)
    wait_for(lambda: len(server.asked) > count + 2)
    assert source.look() == kept
    source.close()
    assert set(server.asked) == {"/redfish/v1/Chassis/1/Power"}


def test_prometheus_is_asked_its_query(bmc: tuple[type[Bmc], str], caplog: pytest.LogCaptureFixture) -> None:
    """The query goes to the HTTP API below the root; a fault is told once, not with every question."""
    server, url = bmc
    server.answer = (200, json.dumps(vector("1", "2")))
    source = HttpNodePower("n1", PROMETHEUS, f"{url}/", 'power_w{node="n1"}', interval_s=0.01)
    wait_for(lambda: len(server.asked) > 3)
    assert source.look() is None
    source.close()
    parts = urlsplit(server.asked[0])
    assert (parts.path, parse_qs(parts.query)) == ("/api/v1/query", {"query": ['power_w{node="n1"}']})
    told = [record.getMessage() for record in caplog.records]
    assert told == [
        "The node's power is not known: node=n1 cause=ValueError: the query gives 2 values, not one"
    ]
