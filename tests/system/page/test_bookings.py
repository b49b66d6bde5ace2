"""A booking in a real Airflow: a task waits for it, told by whom, and starts when it is ended."""

from __future__ import annotations

import pytest

from tests.system.page.conftest import Client
from tests.system.rig import Rig

pytestmark = [pytest.mark.airflow]


def test_a_task_waits_for_a_booking_and_starts_after_it(rig: Rig, clients: dict[str, Client]) -> None:
    """Nothing is started on the booked node, the queue tells by whom, and then the task runs there."""
    path = "/api/v1/bookings"
    now_s = clients["op"].get(path).json()["now_s"]
    new = {"node": "small", "until_s": now_s + 3600, "name": "Ada <b>"}
    made = clients["op"].call("POST", path, json=new).json()
    run = rig.run("told")
    run.wait_reason("booked")
    [item] = [
        each for each in clients["viewer"].get("/api/v1/queue").json()["items"] if each["pool"] == "eaco"
    ]
    assert "GPU 0, 1, 2, 3 of small by Ada <b> from" in item["reasons"][0]["sentence"]
    assert clients["op"].call("DELETE", f"{path}/{made['booking_id']}").status_code == 204
    [start] = run.wait_started()
    assert start["node"] == "small"
    rig.end_runs()
