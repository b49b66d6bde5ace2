"""Child processes of a task report through its socket: ranks of distributed training, and shells."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_eaco.provider.progress_record import INSTRUCTION_KEY, PROGRESS_KEY, ProgressRecord
from airflow_provider_eaco.provider.report_socket import SOCKET_VARIABLE, ReportServer, SocketChannel, main
from airflow_provider_eaco.provider.training import TrainingRun
from airflow_provider_eaco.provider.unit_channel import PlainChannel, TaskChannel, WallMeter

RANK = """
import os
from airflow_provider_eaco import training_run
with training_run(epochs=4) as run:
    print("start", run.units_done, run.checkpoint, flush=True)
    for epoch in run.epochs():
        run.report(loss=1.0, checkpoint=f"/c/{epoch + 1}" if os.environ.get("RANK", "0") == "0" else None)
        print("epoch", epoch, flush=True)
print("end", run.units_done, flush=True)
"""
SHELL = """
set -- $("$PY" -m airflow_provider_eaco.provider.report_socket start)
epoch=$1
while [ "$epoch" -lt 3 ]; do
  "$PY" -m airflow_provider_eaco.provider.report_socket begin
  epoch=$((epoch + 1))
  "$PY" -m airflow_provider_eaco.provider.report_socket report --checkpoint "/c/$epoch" || exit $?
done
"""


class Store:
    """Airflow's task state store of one task instance."""

    def __init__(self) -> None:
        self.values: dict[str, Any] = {}

    def get(self, key: str) -> Any:
        return self.values.get(key)

    def set(self, key: str, value: Any) -> None:
        self.values[key] = json.loads(json.dumps(value))


@pytest.fixture
def store() -> Store:
    return Store()


@pytest.fixture
def channel(store: Store) -> TaskChannel:
    record = ProgressRecord(try_number=1, token=7, unit="epoch", units_total=None)
    made = TaskChannel(store, WallMeter(), record, first_try_number=1, identity="x:1")
    made.start()
    return made


@pytest.fixture
def server(channel: TaskChannel) -> Iterator[ReportServer]:
    """A task whose training run is open."""
    opened = ReportServer.open(channel)
    assert opened is not None
    yield opened
    opened.close()


def ask_to_yield(store: Store) -> None:
    store.values[INSTRUCTION_KEY] = {"v": 1, "token": 7, "set_version": 2, "yield": True}


def started(code: str, **environment: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", code], env={**os.environ, **environment}, stdout=subprocess.PIPE, text=True
    )


def output(process: subprocess.Popen[str], code: int = 0) -> list[str]:
    text, _ = process.communicate(timeout=60)
    assert process.returncode == code
    return text.splitlines()


def test_a_child_reports_into_its_task(server: ReportServer, store: Store) -> None:
    """A ``training_run`` in a child process counts units in the task's record."""
    assert output(started(RANK)) == ["start 0 None", *(f"epoch {n}" for n in range(4)), "end 4"]
    progress = store.values[PROGRESS_KEY]
    assert (progress["units_done"], progress["units_total"], progress["checkpoint"]) == (4, 4, "/c/4")


def test_ranks_count_every_unit_once(server: ReportServer, store: Store) -> None:
    """Of several ranks only rank 0 counts, and all go through all units."""
    ranks = [started(RANK, RANK=str(number)) for number in range(3)]
    for rank in ranks:
        assert output(rank)[-1] == "end 4"
    assert store.values[PROGRESS_KEY]["units_done"] == 4


def test_all_ranks_leave_after_the_same_unit(
    server: ReportServer, store: Store, channel: TaskChannel
) -> None:
    """Asked to yield, every rank ends with 0 after the unit whose checkpoint rank 0 saved."""
    ask_to_yield(store)
    late = started(RANK, RANK="1")
    assert late.stdout is not None
    # Real ranks wait for each other in their first step; these two would not.
    assert late.stdout.readline() == "start 0 None\n"
    assert output(started(RANK, RANK="0")) == ["start 0 None"]
    assert output(late) == []
    assert channel.yielded
    assert store.values[PROGRESS_KEY]["checkpoint"] == "/c/1"


def test_a_rank_that_comes_after_the_task_gave_way_leaves_too(server: ReportServer, store: Store) -> None:
    """It would wait for ever for a unit that rank 0 no longer does."""
    ask_to_yield(store)
    first = json.dumps({"do": "complete", "rank": 0, "unit": 0, "checkpoint": "/c/1"})
    late = json.dumps({"do": "complete", "rank": 1, "unit": 1, "checkpoint": None})
    assert [server.answer(line.encode()) for line in (first, late)] == [{"leave": True}] * 2


def test_a_child_goes_on_from_the_task_s_checkpoint(
    server: ReportServer, store: Store, channel: TaskChannel
) -> None:
    """What the task resumed from is what its child starts with."""
    channel.record.units_done, channel.record.checkpoint = 2, "/c/2"
    assert output(started(RANK)) == ["start 2 /c/2", "epoch 2", "epoch 3", "end 4"]


def test_the_parent_leaves_by_reschedule_when_its_child_gave_way(
    store: Store, channel: TaskChannel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a child's yield the task's own process leaves, even if it took the child's end for an error."""
    from airflow.sdk.exceptions import AirflowRescheduleException

    from airflow_provider_eaco.provider import training

    monkeypatch.setattr(training, "_find_channel", lambda *_: channel)
    ask_to_yield(store)

    def train() -> None:
        with TrainingRun(4, "epoch"):
            assert output(started(RANK)) == ["start 0 None"]
            raise OSError("the launcher found its ranks gone")

    with pytest.raises(AirflowRescheduleException):
        train()


def test_a_shell_reports_by_command(server: ReportServer, store: Store) -> None:
    """A shell loop starts where the task stands, and its units are counted."""
    done = subprocess.run(
        ["sh", "-c", SHELL], env={**os.environ, "PY": sys.executable}, timeout=60, check=False
    )
    assert done.returncode == 0
    assert (store.values[PROGRESS_KEY]["units_done"], store.values[PROGRESS_KEY]["checkpoint"]) == (3, "/c/3")


def test_a_shell_is_told_to_end_by_its_exit_code(server: ReportServer, store: Store) -> None:
    """``report`` exits with 75 when the task gives its GPUs up."""
    ask_to_yield(store)
    assert main(["begin"]) == 0
    assert main(["report", "--checkpoint", "/c/1"]) == 75
    assert store.values[PROGRESS_KEY]["units_done"] == 1


def test_a_shell_without_a_task_is_told_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The command ends with 2 and names the variable when nobody listens."""
    monkeypatch.delenv(SOCKET_VARIABLE, raising=False)
    assert main(["report"]) == 2
    assert SOCKET_VARIABLE in capsys.readouterr().err


def test_a_child_without_a_task_trains_on(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A socket that nobody serves is no reason to stop."""
    monkeypatch.setenv(SOCKET_VARIABLE, str(tmp_path / "gone"))
    with TrainingRun(2, "epoch") as run:
        assert isinstance(run._channel, PlainChannel)
        assert list(run.epochs()) == [0, 1]


def test_a_child_outlives_its_task_s_server(channel: TaskChannel, caplog: pytest.LogCaptureFixture) -> None:
    """When the server goes, the child trains on without reports and says so once."""
    opened = ReportServer.open(channel)
    assert opened is not None
    child = SocketChannel.connect(os.environ[SOCKET_VARIABLE])
    assert child is not None
    child._connection.shutdown(socket.SHUT_RDWR)
    child.complete(0, "/c")
    child.complete(1, "/c")
    child.leave_if_yielded()
    opened.close()
    assert caplog.text.count("goes on without reports") == 1


def test_closing_frees_the_ranks_that_wait(channel: TaskChannel) -> None:
    """A rank that waits for rank 0 is answered when the task's run ends."""
    opened = ReportServer.open(channel)
    assert opened is not None
    code = RANK.replace("epochs=4", "epochs=1")
    rank = started(code, RANK="1")
    assert rank.stdout is not None
    assert rank.stdout.readline() == "start 0 None\n"
    opened.close()
    assert output(rank)[-1] == "end 1"


@pytest.mark.parametrize(
    "line", [b"\n", b"[]\n", b"{}\n", b'{"do": "dance"}\n', b'{"do": "complete", "rank": "first"}\n']
)
def test_an_unreadable_request_is_answered(server: ReportServer, store: Store, line: bytes) -> None:
    """Whatever arrives is answered with what is wrong, and counts nothing."""
    assert "error" in server.answer(line)
    assert store.values[PROGRESS_KEY]["units_done"] == 0


def test_a_repeated_report_counts_once(server: ReportServer, store: Store) -> None:
    """The same unit, reported again, gets the same answer and is not counted again."""
    request = b'{"do": "complete", "unit": 0, "checkpoint": "/c"}'
    assert server.answer(request) == server.answer(request) == {"leave": False}
    assert store.values[PROGRESS_KEY]["units_done"] == 1


def test_nothing_stays_behind(channel: TaskChannel, monkeypatch: pytest.MonkeyPatch) -> None:
    """After the run the socket's folder is gone and the environment is as it was."""
    monkeypatch.setenv(SOCKET_VARIABLE, "/of/an/outer/task")
    opened = ReportServer.open(channel)
    assert opened is not None
    folder = Path(os.environ[SOCKET_VARIABLE]).parent
    assert folder.stat().st_mode & 0o077 == 0
    opened.close()
    assert not folder.exists()
    assert os.environ[SOCKET_VARIABLE] == "/of/an/outer/task"
