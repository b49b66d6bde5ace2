"""REST under /eaco/api/v1: who may do what, one form for every error, pages of lists, and the audit log."""

from __future__ import annotations

from typing import Any

import pytest
import requests

from tests.system.page.conftest import USERS, Client
from tests.system.rig import Rig

pytestmark = [pytest.mark.airflow]

CSV = "families,gpu_model,gpu_count,unit_s,samples,power_w\nimported-by-a-test,V100,1,12.5,3,180\n"
# What changes something, with the least role that may; all else may be seen by everybody who is logged in.
CHANGES = {
    ("POST", "/jobs/{job_id}/hold"): "user",
    ("POST", "/jobs/{job_id}/release"): "user",
    ("POST", "/nodes/{node}/drain"): "op",
    ("POST", "/nodes/{node}/undrain"): "op",
    ("POST", "/bookings"): "op",
    ("DELETE", "/bookings/{booking_id}"): "op",
    ("POST", "/profiles/import"): "op",
    ("PUT", "/profiles/{profile_id}/stale"): "op",
    ("DELETE", "/profiles/{profile_id}"): "op",
}
RANKS = list(USERS)


@pytest.fixture(scope="module")
def waiting_job(rig: Rig) -> Any:
    """A task for a whole node that waits while this module runs, since two others hold the halves."""
    for holder in (rig.run("told_two"), rig.run("told_two")):
        holder.wait_started()
    run = rig.run("told_four")
    run.wait_reason("waiting_for_gpu")
    yield run
    rig.end_runs()


@pytest.fixture(scope="module")
def schema(clients: dict[str, Client]) -> dict[str, Any]:
    """The OpenAPI document as the server gives it."""
    return dict(clients["viewer"].get("/api/v1/openapi.json").json())


@pytest.fixture(scope="module")
def arguments(waiting_job: Any, clients: dict[str, Client]) -> dict[str, str]:
    """What stands for each parameter of a path."""
    profile = clients["viewer"].get("/api/v1/profiles?limit=1").json()["items"][0]
    return {
        "job_id": waiting_job.job_id(),
        "node": "small",
        "profile_id": profile["profile_id"],
        "booking_id": "999999",
    }


def _operations(schema: dict[str, Any]) -> list[tuple[str, str]]:
    return [(method.upper(), path) for path, item in schema["paths"].items() for method in item]


def _call(client: Client, method: str, path: str, arguments: dict[str, str]) -> requests.Response:
    bodies = {
        "/api/v1/profiles/import": {"format": "csv", "text": CSV},
        "/api/v1/profiles/{profile_id}/stale": {"stale": False},
        "/api/v1/bookings": {"node": "nowhere", "until_s": 2e9, "name": "Ada"},
    }
    query = "?dag_id=told&run_id=none" if path == "/api/v1/task-jobs" else ""
    return client.call(method, path.format(**arguments) + query, json=bodies.get(path))


def test_every_route_is_closed_to_who_may_not(
    schema: dict[str, Any], clients: dict[str, Client], arguments: dict[str, str]
) -> None:
    """Anonymous gets 401 from every route; a role gets 403 from exactly the changes beyond it."""
    operations = _operations(schema)
    assert {(method, path.removeprefix("/api/v1")) for method, path in operations} >= set(CHANGES)
    for method, path in operations:
        least = CHANGES.get((method, path.removeprefix("/api/v1")), "viewer")
        assert (method == "GET") == (least == "viewer"), f"{method} {path} has no stated permission"
        for name, client in clients.items():
            status = _call(client, method, path, arguments).status_code
            what = f"{name}: {method} {path}"
            if name == "anonymous":
                assert status == 401, what
            elif RANKS.index(name) < RANKS.index(least):
                assert status == 403, what
            else:
                assert status in {200, 204, 304, 404}, what


@pytest.mark.parametrize("path", ["/", "/run", "/task", "/ui/app.js", "/ui/icon.svg", "/api/v1/openapi.json"])
def test_pages_are_closed_too(path: str, clients: dict[str, Client]) -> None:
    """The page, its files and the API's description need a user who may see the cluster."""
    assert clients["anonymous"].get(path).status_code == 401
    assert clients["viewer"].get(path).status_code == 200


def test_no_path_names_a_file_of_the_disk(clients: dict[str, Client]) -> None:
    """Only the page's own files are served, whatever the path says."""
    for path in ("/ui/../api/app.py", "/ui/%2e%2e/plugin.py", "/ui//etc/passwd", "/ui/nothing.js"):
        assert clients["admin"].get(path).status_code == 404, path


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("GET", "/api/v1/jobs/nobody", 404, "not_found"),
        ("GET", "/api/v1/nothing-here", 404, "not_found"),
        ("GET", "/api/v1/queue?limit=0", 400, "invalid_request"),
        ("GET", "/api/v1/queue?offset=-1", 400, "invalid_request"),
        ("GET", "/api/v1/report?month=2026-13", 400, "invalid_request"),
        ("GET", "/api/v1/report/export?format=pdf", 400, "invalid_request"),
        ("DELETE", "/api/v1/queue", 405, "method_not_allowed"),
        ("POST", "/api/v1/jobs/nobody/hold", 404, "not_found"),
        ("POST", "/api/v1/nodes/nowhere/drain", 404, "not_found"),
        ("DELETE", f"/api/v1/profiles/{'0' * 32}", 404, "not_found"),
        ("DELETE", "/api/v1/bookings/999999", 404, "not_found"),
        ("POST", "/api/v1/bookings", 400, "invalid_request"),
    ],
)
def test_errors_have_one_form(
    method: str, path: str, status: int, code: str, clients: dict[str, Client]
) -> None:
    """Whatever is wrong, the answer is an error object with a stable code and a sentence."""
    answer = clients["admin"].call(method, path)
    assert answer.status_code == status
    body = answer.json()
    assert set(body) == {"error"}
    assert body["error"]["code"] == code
    assert body["error"]["message"]


def test_a_broken_file_of_profiles_is_refused_whole(clients: dict[str, Client]) -> None:
    """An import names every error with its line, and stores nothing."""
    before = clients["op"].get("/api/v1/profiles").json()["total"]
    answer = clients["op"].call(
        "POST", "/api/v1/profiles/import", json={"format": "csv", "text": CSV + "x,V100,0,-1,1,1\n"}
    )
    assert answer.status_code == 400
    assert "line 3" in answer.json()["error"]["message"]
    assert clients["op"].get("/api/v1/profiles").json()["total"] == before


def test_lists_come_page_by_page(clients: dict[str, Client]) -> None:
    """Pages of a list follow each other without a gap, and the total is that of the whole list."""
    whole = clients["viewer"].get("/api/v1/profiles?limit=500").json()
    first = clients["viewer"].get("/api/v1/profiles?limit=2").json()
    second = clients["viewer"].get("/api/v1/profiles?limit=2&offset=2").json()
    assert whole["total"] == first["total"] == second["total"] == len(whole["items"])
    assert first["items"] + second["items"] == whole["items"][:4]


def test_what_has_not_changed_is_not_sent_again(clients: dict[str, Client]) -> None:
    """A list that the browser has already costs an empty 304."""
    answer = clients["viewer"].get("/api/v1/queue")
    again = clients["viewer"].call("GET", "/api/v1/queue", headers={"If-None-Match": answer.headers["ETag"]})
    assert again.status_code == 304
    assert again.content == b""


def test_a_change_stands_in_the_audit_log(waiting_job: Any, clients: dict[str, Client], rig: Rig) -> None:
    """Hold, release, drain and undrain leave one line each with the user who did it; a refused one none."""
    job_id = waiting_job.job_id()
    before = len(_lines(rig))
    clients["viewer"].call("POST", f"/api/v1/jobs/{job_id}/hold")
    assert clients["user"].call("POST", f"/api/v1/jobs/{job_id}/hold").json()["on_hold"] is True
    assert clients["user"].call("POST", f"/api/v1/jobs/{job_id}/release").json()["on_hold"] is False
    clients["user"].call("POST", "/api/v1/nodes/small/drain")
    assert clients["op"].call("POST", "/api/v1/nodes/small/drain").json() == {
        "node": "small",
        "draining": True,
    }
    clients["op"].call("POST", "/api/v1/nodes/small/undrain")
    lines = _lines(rig)[before:]
    assert [(line["event"], line["owner"]) for line in lines] == [
        ("eaco user hold", "user"),
        ("eaco user release", "user"),
        ("eaco user drain", "op"),
        ("eaco user undrain", "op"),
    ]
    assert (lines[0]["dag_id"], lines[0]["task_id"], lines[0]["run_id"]) == (
        "told_four",
        "work",
        waiting_job.run_id,
    )


def _lines(rig: Rig) -> list[dict[str, Any]]:
    return rig.airflow.query("SELECT * FROM log WHERE event LIKE 'eaco user %' ORDER BY id")


def test_gpus_are_booked_and_given_back(clients: dict[str, Client], rig: Rig) -> None:
    """Who may change pools books GPUs once and ends that, each with a line in the audit log; all see it, and
    what cannot be booked is refused by its argument.
    """
    before, path = len(_lines(rig)), "/api/v1/bookings"
    begin_s = clients["viewer"].get(path).json()["now_s"] + 3 * 86400
    new = {
        "node": "shared-2",
        "gpus": [0, "1"],
        "from_s": begin_s,
        "until_s": begin_s + 3600,
        "name": "Ada <b>",
    }
    for name in ("viewer", "user"):
        assert clients[name].call("POST", path, json=new).status_code == 403
    made = clients["op"].call("POST", path, json=new).json()
    assert clients["viewer"].get(path).json()["items"] == [made]
    assert (made["name"], len(made["gpu_uuids"]), made["from_s"]) == ("Ada <b>", 2, begin_s)
    for changes, status, told in (
        ({"gpus": []}, 409, "is booked by Ada <b> from "),
        ({"gpus": [8]}, 400, "gpus: node shared-2 has no GPU '8'"),
        ({"node": "nowhere"}, 404, "node: no node is named 'nowhere'"),
        ({"until_s": begin_s}, 400, "until_s: "),
        ({"from_s": 0}, 400, "from_s: 1970-01-01 00:00 UTC is in the past"),
        ({"name": ""}, 400, "name: is empty"),
    ):
        answer = clients["op"].call("POST", path, json={**new, **changes})
        assert (answer.status_code, told in answer.json()["error"]["message"]) == (status, True), answer.text
    own = f"{path}/{made['booking_id']}"
    assert clients["user"].call("DELETE", own).status_code == 403
    assert clients["op"].call("DELETE", own).status_code == 204
    assert clients["op"].call("DELETE", own).status_code == 404
    assert clients["viewer"].get(path).json()["items"] == []
    lines = _lines(rig)[before:]
    assert [(line["event"], line["owner"]) for line in lines] == [
        ("eaco user book", "op"),
        ("eaco user unbook", "op"),
    ]
    assert all("Ada <b>" in line["extra"] for line in lines)


def test_a_running_task_cannot_be_held(clients: dict[str, Client], waiting_job: Any, rig: Rig) -> None:
    """Only a waiting task can be held: 409, and it is not changed."""
    lease = next(each for each in rig.leases() if each["node"] == "small")
    answer = clients["admin"].call("POST", f"/api/v1/jobs/{lease['job_id']}/hold")
    assert (answer.status_code, answer.json()["error"]["code"]) == (409, "conflict")


def test_c64_the_numbers_add_up(clients: dict[str, Client], waiting_job: Any) -> None:
    """Never more used than there are, pools add up, and the queue is as long as its count says (C64)."""
    overview = clients["viewer"].get("/api/v1/overview").json()
    queue = clients["viewer"].get("/api/v1/queue?limit=500").json()
    totals = overview["summary"]
    gpus = [gpu for node in overview["nodes"] for gpu in node["gpus"]]
    used = [gpu for gpu in gpus if gpu["residents"]]
    assert (int(totals["gpus"]), int(totals["gpus_used"])) == (len(gpus), len(used))
    assert int(totals["waiting"]) == queue["total"] == len(queue["items"]) >= 1
    assert int(totals["running"]) == len(overview["residents"])
    assert {job for gpu in gpus for job in gpu["residents"]} == set(overview["residents"])
    for pool in overview["pools"]:
        assert 0 <= int(pool["gpus_shared"]) <= int(pool["gpus_used"]) <= int(pool["gpus"])
        of_pool = [item for item in queue["items"] if item["pool"] == pool["pool"]]
        assert int(pool["waiting"]) == len(of_pool)
        assert [item["position"] for item in of_pool] == list(range(1, len(of_pool) + 1))


def test_c63_the_reason_is_that_of_the_audit_log(
    clients: dict[str, Client], waiting_job: Any, rig: Rig
) -> None:
    """The API's sentence, that of the command line and the newest of the audit log are the same, also when
    only a number in it has changed.
    """

    def told(free: int) -> str | None:
        [item] = clients["viewer"].get("/api/v1/queue").json()["items"]
        sentence = str(item["reasons"][0]["sentence"])
        line = f"{item['reasons'][0]['code']}: {sentence}"
        newest = [text for event, text in waiting_job.audit() if event == "eaco hold"][-1]
        return sentence if f"free on the best: {free};" in sentence and newest == line else None

    sentence = rig.wait_for(lambda: told(0), "the reason in the audit log")
    assert waiting_job.why()["sentence"] == sentence
    half = next(run for run in rig.runs if run.dag_id == "told_two")
    half.end()
    sentence = rig.wait_for(lambda: told(2), "the new number in the audit log")
    assert waiting_job.why()["sentence"] == sentence


def test_schemathesis_finds_nothing(clients: dict[str, Client], schema: dict[str, Any]) -> None:
    """Whatever schemathesis makes of the OpenAPI document: no server error, no answer beyond the document."""
    schemathesis = pytest.importorskip("schemathesis")
    from hypothesis import HealthCheck, assume, given, settings
    from schemathesis.checks import not_a_server_error
    from schemathesis.specs.openapi.checks import (
        content_type_conformance,
        response_schema_conformance,
        status_code_conformance,
    )

    loaded = schemathesis.openapi.from_dict(schema)
    loaded.config.update(base_url=clients["admin"].root)
    checks = [
        not_a_server_error,
        status_code_conformance,
        content_type_conformance,
        response_schema_conformance,
    ]
    for found in loaded.get_all_operations():
        operation = found.ok()

        @given(case=operation.as_strategy())
        @settings(
            max_examples=8,
            deadline=None,
            database=None,
            derandomize=True,
            suppress_health_check=list(HealthCheck),
        )
        def attempt(case: Any) -> None:
            # A path with a line break ends in Airflow's server, which takes it for nobody's.
            assume(not any("\n" in str(value) for value in (case.path_parameters or {}).values()))
            case.call_and_validate(checks=checks, headers=clients["admin"].headers)

        attempt()
