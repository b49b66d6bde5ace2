"""What a node must not do: each attempt gets a 4xx and changes nothing."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.integration.node_api.gate import Gate, counters_of, gpu_of, report_of

TEN_MB = 10 * 2**20


def _stream(size: int) -> Iterator[bytes]:
    """A body of this size whose length nobody announces."""
    yield b'{"v": 2, "machine": "'
    for _ in range(size // 2**16):
        yield b"x" * 2**16
    yield b'"}'


def _garbage(body: bytes) -> Callable[[Gate], Any]:
    return lambda gate: gate.post("/one/report", credential=gate.secrets["one"], content=body)


def _changed(**changes: Any) -> Callable[[Gate], Any]:
    return _garbage(json.dumps(report_of("one", **changes)).encode())


def _gpu(**changes: Any) -> Callable[[Gate], Any]:
    gpu = {**report_of("one")["gpus"][0], **changes}
    return _changed(gpus=[gpu])


def _news(**changes: Any) -> Callable[[Gate], Any]:
    return _changed(news=[{"token": 1, "state": "running", **changes}])


def _limits(**told: Any) -> Callable[[Gate], Any]:
    return _changed(v=3, limits=told)


def _foreign(*processes: dict[str, Any], v: int = 3) -> Callable[[Gate], Any]:
    return _changed(v=v, readings=[{"uuid": gpu_of("one"), "foreign_by": list(processes)}])


def _someone_elses_run(gate: Gate) -> Any:
    return gate.report("two", news=[{"token": gate.lease.token, "state": "ended", "exit_code": 0}])


def _someone_elses_gpu(gate: Gate) -> Any:
    gpus = [{**report_of("one")["gpus"][0]}]
    return gate.report("two", gpus=gpus)


def _part(gate: Gate, uuid: str) -> dict[str, Any]:
    part = {"energy_j": 1e14, "seconds": 10.0, "method": "counter"}
    return {**part, "token": gate.lease.token, "gpu_uuid": uuid}


def _observed(**changes: Any) -> Callable[[Gate], Any]:
    task = {
        "job_id": "01a23240-81cb-7f33-8356-000000000001",
        "process": "10:1:aaaa-bbbb",
        "pids": [10],
        "gpu_uuids": [gpu_of("one")],
        "running_s": 10.0,
        "from_start": True,
        "alone": True,
        **changes,
    }
    body = {"v": 1, "machine": "host-one", "tasks": [task]}
    return lambda gate: gate.post("/one/observed", credential=gate.secrets["one"], json=body)


CREDENTIALS: dict[str, tuple[Callable[[Gate], Any], int]] = {
    "none": (lambda gate: gate.post("/one/report", json=report_of("one")), 401),
    "an empty one": (lambda gate: gate.report("one", credential=""), 401),
    "a guess": (lambda gate: gate.report("one", credential="guess"), 401),
    "one of 10 kB": (lambda gate: gate.report("one", credential="x" * 10_000), 401),
    "another scheme": (
        lambda gate: gate.post("/one/report", headers={"Authorization": f"Basic {gate.secrets['one']}"}),
        401,
    ),
    "an access token of Airflow": (
        lambda gate: gate.report("one", credential="eyJhbGciOiJIUzUxMiJ9.eyJzdWIiOiJhZG1pbiJ9.c2ln"),
        401,
    ),
    "another node's": (lambda gate: gate.report("one", credential=gate.secrets["two"]), 401),
    "one for a node that nobody knows": (
        lambda gate: gate.post("/three/report", credential=gate.secrets["one"], json=report_of("one")),
        401,
    ),
    "for a name that is none": (
        lambda gate: gate.post("/%00one/report", credential=gate.secrets["one"], json=report_of("one")),
        401,
    ),
}

BODIES: dict[str, tuple[Callable[[Gate], Any], int]] = {
    "nothing": (_garbage(b""), 422),
    "no JSON": (_garbage(b"\x00\xff garbage"), 422),
    "half a document": (_garbage(b'{"v": 2, "machine"'), 422),
    "a list": (_garbage(b"[1, 2]"), 422),
    "100,000 brackets": (_garbage(b"[" * 100_000), 422),
    "10 MB": (_garbage(json.dumps(report_of("one", machine="x" * TEN_MB)).encode()), 413),
    "10 MB whose length nobody announces": (
        lambda gate: gate.post("/one/report", credential=gate.secrets["one"], content=_stream(TEN_MB)),
        413,
    ),
    "a length that is none": (
        lambda gate: gate.post(
            "/one/report", credential=gate.secrets["one"], content=b"{}", headers={"Content-Length": "many"}
        ),
        413,
    ),
    "a format that nobody knows": (_changed(v=4), 422),
    "no format": (_changed(v=None), 422),
    "a format that is two older": (_changed(v=1), 422),
    "what the next format has": (_changed(limits={}), 422),
    "a limit on no board": (_limits(boards=[{"gpu_uuids": []}]), 422),
    "a limit below 0": (
        _limits(boards=[{"gpu_uuids": [gpu_of("one")], "limit_w": -1, "before_w": [1]}]),
        422,
    ),
    "a limit without what was before": (
        _limits(boards=[{"gpu_uuids": [gpu_of("one")], "limit_w": 200}]),
        422,
    ),
    "a permit for SQL": (_limits(permits={"'; DROP TABLE eaco_gpu; --": None}), 422),
    "a megabyte of refusal": (_limits(permits={gpu_of("one"): "x" * 900_000}), 422),
    "memory of a run below 0": (_changed(peaks=[{"token": 1, "memory_mib": -1}]), 422),
    "more processes than a column takes": (
        _changed(readings=[{"uuid": gpu_of("one"), "foreign_processes": 2**31}]),
        422,
    ),
    "a user with a NUL": (_foreign({"pid": 7, "user": "a\x00"}), 422),
    "a process that is none": (_foreign({"pid": 0}), 422),
    "more processes than anybody reads": (_foreign(*[{"pid": 7}] * 65), 422),
    "processes in the format before": (_foreign(v=2), 422),
    "an unknown key": (_changed(admin=True), 422),
    "the name of another node": (_changed(node="two"), 422),
    "no machine": (_changed(machine=""), 422),
    "a NUL": (_changed(machine="a\x00b"), 422),
    "no GPUs": (_changed(gpus=None), 422),
    "a thousand GPUs too many": (_changed(gpus=report_of("one")["gpus"] * 1000), 422),
    "a GPU twice": (_changed(gpus=report_of("one")["gpus"][:1] * 2), 422),
    "a GPU by number": (_gpu(uuid="0"), 422),
    "a GPU with SQL for a name": (_gpu(uuid="GPU-'; DROP TABLE eaco_gpu; --"), 422),
    "negative memory": (_gpu(memory_total_mib=-1), 422),
    "memory that no database takes": (_gpu(memory_total_mib=2**70), 422),
    "memory as text": (_gpu(memory_total_mib="32768"), 422),
    "memory as a truth": (_gpu(memory_total_mib=True), 422),
    "an unknown health": (_gpu(health="splendid"), 422),
    "a clock that stands still": (_changed(time_scale=0), 422),
    "NaN": (_changed(time_scale=math.nan), 422),
    "infinity": (_changed(time_scale=math.inf), 422),
    "a reading of no GPU": (_changed(readings=[{"uuid": "GPU-elsewhere"}]), 422),
    "use above 100 %": (_changed(readings=[{"uuid": gpu_of("one"), "utilisation_pct": 101}]), 422),
    "negative joules": (_changed(readings=[{"uuid": gpu_of("one"), "energy_j": -1}]), 422),
    "a lease below 1": (_news(token=0), 422),
    "a lease that no database takes": (_news(token=2**63), 422),
    "a state that a node may not set": (_news(state="taken_back"), 422),
    "an exit code that no process has": (_news(exit_code=100_000), 422),
    "a megabyte of cause": (_news(cause="x" * 900_000), 422),
}

OTHERS: dict[str, tuple[Callable[[Gate], Any], int]] = {
    "the end of another node's run": (_someone_elses_run, 409),
    "another node's GPU": (_someone_elses_gpu, 409),
    "the memory of another node's run": (
        lambda gate: gate.report("two", peaks=[{"token": gate.lease.token, "memory_mib": 1}]),
        409,
    ),
    "energy on another node's GPU": (
        lambda gate: gate.report("one", energy=[_part(gate, gpu_of("two"))]),
        409,
    ),
    "energy on nobody's GPU": (
        lambda gate: gate.report("one", energy=[_part(gate, "GPU-nobody")]),
        409,
    ),
    "counters of another node's GPU": (_changed(counters=counters_of(gpu_of("two"))), 409),
    "a permit of another node's GPU": (_limits(permits={gpu_of("two"): None}), 409),
    "a limit on another node's GPU": (
        _limits(boards=[{"gpu_uuids": [gpu_of("one"), gpu_of("two")], "limit_w": 9, "before_w": [9, 9]}]),
        409,
    ),
    "a limit that may be on another node's GPU": (_limits(boards=[{"gpu_uuids": [gpu_of("two")]}]), 409),
    "a limit that another node's GPU refused": (
        _limits(refused=[{"gpu_uuids": [gpu_of("two")], "cause": "out of range"}]),
        409,
    ),
    "a task on another node's GPU": (_observed(gpu_uuids=[gpu_of("two")]), 409),
    "a task's energy on another node's GPU": (
        _observed(energy=[{"gpu_uuid": gpu_of("two"), "energy_j": 1.0, "seconds": 1.0, "method": "counter"}]),
        409,
    ),
    "from a second machine": (lambda gate: gate.report("one", machine="copy"), 409),
    "a start from a second machine": (lambda gate: gate.start("one", gate.lease.token, machine="copy"), 409),
}


@pytest.mark.parametrize(
    ("attempt", "status"),
    [pytest.param(*case, id=name) for cases in (CREDENTIALS, BODIES, OTHERS) for name, case in cases.items()],
)
def test_a_bad_request_gets_a_4xx_and_changes_nothing(
    attempt: Callable[[Gate], Any], status: int, gate: Gate
) -> None:
    """Whatever is wrong with a request, it is refused and every row of every table stays as it was."""
    before = gate.everything()
    answer = attempt(gate)
    assert answer.status_code == status, answer.text
    assert gate.everything() == before


def test_a_board_that_another_node_counts_is_not_counted(gate: Gate) -> None:
    """One that MIG divides is in no inventory: its counters are those of the node that counts it."""
    assert gate.report("two", counters=counters_of("GPU-divided")).status_code == 200
    before = gate.everything()
    assert [row[0] for row in before["eaco_energy_device"]] == ["GPU-divided"]
    assert gate.report("one", counters=counters_of("GPU-divided")).status_code == 409
    assert gate.everything() == before


def test_a_gpu_that_the_node_has_lost_may_still_be_told_of(gate: Gate) -> None:
    """What ran there has used what it used, also once the GPU is gone, and nobody else has it."""
    lost = gpu_of("one", 1)
    gpus = report_of("one")["gpus"][:1]
    assert gate.report("one", gpus=gpus).status_code == 200
    told = gate.report(
        "one",
        v=3,
        gpus=gpus,
        energy=[_part(gate, lost)],
        counters=counters_of(lost),
        limits={"boards": [{"gpu_uuids": [lost]}]},
    )
    assert told.status_code == 200, told.text
    rows = gate.everything()
    assert [row[1] for row in rows["eaco_energy"]] == [lost]
    assert [row[0] for row in rows["eaco_energy_device"]] == [lost]


@pytest.mark.parametrize("void", ["revoke", "add"])
def test_a_void_credential_opens_nothing(void: str, gate: Gate) -> None:
    """A credential that was revoked, or replaced by a new one, is refused like a foreign one."""
    getattr(gate.credentials, void)("two")
    before = gate.everything()
    assert gate.report("two").status_code == 401
    assert gate.everything() == before


def test_a_refusal_tells_nothing_of_what_was_sent(gate: Gate) -> None:
    """Neither the credential nor the sender's text comes back in a refusal."""
    answer = gate.report("one", credential="secret-guess")
    assert "secret-guess" not in answer.text
    assert gate.secrets["one"] not in answer.text
    answer = gate.report("one", machine="text-of-the-sender\x01")
    assert answer.status_code == 422
    assert "text-of-the-sender" not in answer.text


def test_only_a_digest_of_a_credential_is_stored(gate: Gate) -> None:
    """No table holds a credential, and two credentials of one node differ."""
    stored = json.dumps(gate.everything(), default=str)
    assert all(secret not in stored for secret in gate.secrets.values())
    assert all(len(secret) >= 43 for secret in gate.secrets.values())
    assert gate.credentials.add("one") != gate.secrets["one"]
