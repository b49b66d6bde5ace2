import contextlib
import json
import os
import resource
import signal
import sys
import threading
from pathlib import Path

import pytest

from airflow_provider_eaco.core.model.errors import LaunchError, NotReadyError
from airflow_provider_eaco.dispatch.claim import claimant
from airflow_provider_eaco.dispatch.environment import environment_without_gpu
from airflow_provider_eaco.dispatch.local import LocalDispatcher
from airflow_provider_eaco.dispatch.process_group import ProcessReference

DEADLINE_S = 30.0

EXITS = [
    pytest.param(("exit_with", "null"), 0, "", id="returned nothing"),
    pytest.param(("exit_with", "0"), 0, "", id="returned 0"),
    pytest.param(("exit_with", "7"), 7, "", id="returned a code"),
    pytest.param(("exit_with", "256"), 1, "", id="returned what the kernel would cut to 0"),
    pytest.param(("return_text", "done"), 1, "None or an exit code, not 'done'", id="returned no code"),
    pytest.param(("leave_with", "3"), 3, "", id="sys.exit with a code"),
    pytest.param(("leave_with", "null"), 0, "", id="sys.exit without one"),
    pytest.param(("leave_with", '"bye"'), 1, "bye", id="sys.exit with a text"),
    pytest.param(("fail", "no data"), 1, "RuntimeError: no data", id="raised"),
    pytest.param(("end_by_signal", "9"), 128 + 9, "ended by SIGKILL", id="killed itself"),
    pytest.param(("end_by_signal", "11"), 128 + 11, "ended by SIGSEGV", id="crashed"),
]


@pytest.mark.parametrize(("call", "code", "said"), EXITS)
def test_the_exit_code_tells_how_the_entry_point_ended(rig, tmp_path, call, code, said):
    """A return value, an exception and a signal each end in their own exit code, the cause in the log."""
    log = tmp_path / "job.log"
    reference = rig.start(*call, EACO_LOG_FILE=str(log))
    assert rig.ended(reference).exit_code == code
    assert said in log.read_text()
    assert rig.dispatcher.poll(reference).exit_code == code, "asking again gives the same answer"


@pytest.mark.parametrize(
    ("entry_point", "cause"),
    [
        ("no_such_module:run", "No module named 'no_such_module'"),
        ("dispatched_jobs:absent", "no attribute 'absent'"),
    ],
)
def test_c19_a_bad_entry_point_ends_with_its_cause_in_the_log(rig, tmp_path, entry_point, cause):
    """A module or function that is not there ends the job at once, with the reason in its log."""
    log = tmp_path / "job.log"
    reference = rig.start(entry_point, EACO_LOG_FILE=str(log))
    assert rig.ended(reference).exit_code == 1
    assert cause in log.read_text()


@pytest.mark.parametrize("entry_point", ["no colon", ":run", "module:"])
def test_c19_an_unreadable_entry_point_is_a_launch_error(rig, entry_point):
    """An entry point that is not ``module:function`` starts nothing and is named."""
    with pytest.raises(LaunchError, match=f"entry_point '{entry_point}' must be of the form"):
        rig.start(entry_point)


def test_c19_a_full_disk_is_a_launch_error(rig):
    """When the log cannot be written nothing is started, and the error carries the system's cause."""
    with pytest.raises(LaunchError, match="No space left on device"):
        rig.start("exit_with", "0", EACO_LOG_FILE="/dev/full")


def test_c19_a_missing_log_folder_is_a_launch_error(rig, tmp_path):
    """When the log cannot be opened nothing is started, and the error names its path."""
    with pytest.raises(LaunchError, match=r"No such file or directory.*absent"):
        rig.start("exit_with", "0", EACO_LOG_FILE=str(tmp_path / "absent" / "job.log"))


def test_c19_a_bad_interpreter_is_a_launch_error(rig, monkeypatch):
    """Without an interpreter there is no forkserver; the next start, with one, works."""
    with monkeypatch.context() as patch:
        patch.setattr(sys, "executable", "/no/such/python")
        with pytest.raises(LaunchError, match=r"forkserver could not be started.*No such file"):
            rig.start("exit_with", "0")
    assert rig.start("exit_with", "0")


def test_c19_an_interpreter_that_ends_at_once_is_a_launch_error(rig, monkeypatch):
    """A forkserver that cannot run is noticed by its end, not by a time-out."""
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(LaunchError, match="the forkserver"):
        rig.start("exit_with", "0")


def test_c19_a_forkserver_that_never_gets_ready_is_a_launch_error_after_the_time_limit(rig):
    """While a preloaded module hangs, starts are told "not now"; past the limit one is told the cause, and
    the next begins anew.
    """
    now_s = [100.0]
    hanging = LocalDispatcher(["hanging_module"], ready_timeout_s=60.0, monotonic=lambda: now_s[0])
    order = rig.order("exit_with", "0")
    for now_s[0] in (100.0, 159.0):
        assert rig.try_start(order, by=hanging) is None
    server = hanging._forkserver._process
    now_s[0] = 160.0
    with pytest.raises(LaunchError, match=r"the forkserver was not ready within 60 s") as raised:
        hanging.start(order)
    assert not isinstance(raised.value, NotReadyError)
    assert server.returncode == -signal.SIGKILL
    assert rig.try_start(order, by=hanging) is None
    hanging.close(0.0)


def test_c24_a_start_does_not_wait_for_the_forkserver_to_get_ready(rig):
    """A start on a forkserver that is importing returns with "not now"; the same order starts later, once."""
    order = rig.order("exit_with", "4")
    with pytest.raises(NotReadyError, match="the forkserver has just been started"):
        rig.dispatcher.start(order)
    rig.server().send_signal(signal.SIGSTOP)
    server = rig.server()
    rig.try_start(order)
    assert rig.server() is server, "it has time to get ready"
    server.send_signal(signal.SIGCONT)
    assert rig.dispatcher.warm_up(DEADLINE_S)
    assert rig.ended(rig.dispatcher.start(order)).exit_code == 4


def test_c24_a_start_without_an_answer_is_tried_again_on_a_new_forkserver(rig):
    """A forkserver that hangs is ended after the limit, and the start succeeds on its successor."""
    patient = rig.dispatcher = LocalDispatcher(answer_timeout_s=0.3)
    assert patient.warm_up(DEADLINE_S)
    hung = rig.server()
    hung.send_signal(signal.SIGSTOP)
    order = rig.order("exit_with", "4")
    with pytest.raises(NotReadyError, match=r"gave no answer: not within 0\.3 s; there is one more try"):
        patient.start(order)
    assert hung.returncode == -signal.SIGKILL
    patient._answer_timeout_s = DEADLINE_S
    assert rig.ended(rig.start_order(order)).exit_code == 4


def test_c24_a_second_start_without_an_answer_is_a_launch_error(rig):
    """When the successor hangs as well, the start fails with the cause and nothing of it runs."""
    patient = rig.dispatcher = LocalDispatcher(answer_timeout_s=0.3)
    order = rig.order("exit_with", "0")
    for wanted in (NotReadyError, LaunchError):
        assert patient.warm_up(DEADLINE_S)
        rig.server().send_signal(signal.SIGSTOP)
        with pytest.raises(LaunchError, match="the forkserver gave no answer") as raised:
            patient.start(order)
        assert type(raised.value) is wanted
    assert claimant(order.job_id, order.token) is None


def no_answer_once_claimed(rig, dispatcher, order, monkeypatch):
    """Start the order, give up on the forkserver once its keeper has claimed, and return the pid of that."""
    claimed = []

    def request(server, message):
        server.channel.send(message, DEADLINE_S)
        claimed.append(rig.until(lambda: claimant(order.job_id, order.token), "the keeper's claim"))
        raise TimeoutError("not until its keeper had claimed")

    with monkeypatch.context() as patched:
        patched.setattr(dispatcher, "_request", request)
        assert rig.try_start(order, dispatcher) is None, "the keeper waits for its log"
    return claimed[0]


def test_c24_a_keeper_of_a_hung_forkserver_starts_nothing_beside_the_second_try(rig, tmp_path, monkeypatch):
    """What the hung forkserver had forked already ends without running the job, and the job runs once."""
    patient = rig.dispatcher = LocalDispatcher(answer_timeout_s=DEADLINE_S, keeper_timeout_s=DEADLINE_S)
    assert patient.warm_up(DEADLINE_S)
    pipe = tmp_path / "log"
    os.mkfifo(pipe)  # a log that cannot be opened until somebody reads it
    order = rig.order("write", "once", token=0, EACO_LOG_FILE=str(pipe))
    stuck = no_answer_once_claimed(rig, patient, order, monkeypatch)
    assert claimant(order.job_id, order.token) == stuck
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    assert rig.ended(rig.start_order(order)).exit_code == 0
    assert os.read(reader, 65_536).count(b"once") == 1
    os.close(reader)


def test_c24_a_keeper_that_outlives_its_forkserver_without_a_job_is_ended(rig, tmp_path, monkeypatch):
    """A keeper that stays stuck after its forkserver was ended does not hold its lease for ever."""
    patient = rig.dispatcher = LocalDispatcher(answer_timeout_s=1.0, keeper_timeout_s=DEADLINE_S)
    assert patient.warm_up(DEADLINE_S)
    pipe = tmp_path / "log"
    os.mkfifo(pipe)
    order = rig.order("exit_with", "0", EACO_LOG_FILE=str(pipe))
    stuck = no_answer_once_claimed(rig, patient, order, monkeypatch)

    def is_free():
        with contextlib.suppress(NotReadyError):
            patient._running(order)
        return rig.alive([stuck]) == []

    rig.until(is_free, "the end of the stuck keeper")
    assert claimant(order.job_id, order.token) is None


def test_c24_a_log_that_hangs_fails_its_own_start_only(rig, tmp_path):
    """A keeper that does not report is ended by the forkserver, which then starts the next job."""
    rig.dispatcher = LocalDispatcher(answer_timeout_s=DEADLINE_S, keeper_timeout_s=2.0)
    assert rig.dispatcher.warm_up(DEADLINE_S)
    server = rig.server()
    pipe = tmp_path / "log"
    os.mkfifo(pipe)
    order = rig.order("exit_with", "0", EACO_LOG_FILE=str(pipe))
    with pytest.raises(LaunchError, match=r"did not get as far as its job within 2 s"):
        rig.dispatcher.start(order)
    assert claimant(order.job_id, order.token) is None
    assert rig.ended(rig.start("exit_with", "4")).exit_code == 4
    assert rig.server() is server


def test_c19_a_system_without_room_is_a_launch_error(rig):
    """When the system gives the forkserver nothing more, the error says so; later starts work again."""
    rig.ended(rig.start("exit_with", "0"))
    server = rig.server().pid
    usual = resource.prlimit(server, resource.RLIMIT_NOFILE)
    resource.prlimit(server, resource.RLIMIT_NOFILE, (3, usual[1]))
    with pytest.raises(LaunchError, match="Too many open files"):
        rig.start("exit_with", "0")
    resource.prlimit(server, resource.RLIMIT_NOFILE, usual)
    assert rig.ended(rig.start("exit_with", "0")).exit_code == 0
    assert rig.server().pid == server


def test_a_job_finds_an_ordinary_process_around_it(rig, tmp_path):
    """Inside, a job has default signals, a group of its own in its keeper's session, one thread, no strange
    files, and a seed of its own.
    """
    draws = []
    for name in ("first", "second"):
        described = tmp_path / name
        reference = rig.start("describe", described, EACO_LOG_FILE=str(tmp_path / "job.log"))
        assert rig.ended(reference).exit_code == 0, (tmp_path / "job.log").read_text()
        seen = json.loads(described.read_text())
        keeper = ProcessReference.parse(reference).pid
        assert (seen["group"], seen["session"], seen["parent"]) == (seen["pid"], keeper, keeper)
        assert (seen["sigint"], seen["sigterm"], seen["blocked"]) == (True, True, [])
        assert seen["threads"] == 1
        assert not [path for path in seen["open_files"] if path.startswith(("socket:", "pipe:"))]
        draws.append(seen["random"])
    assert draws[0] != draws[1]


def test_c43_the_grant_is_set_before_user_code_is_imported(rig, tmp_path, monkeypatch):
    """Ours wins over a device choice of the surroundings, which is named in the job's log."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    described, log = tmp_path / "seen", tmp_path / "job.log"
    wanted = rig.order("describe", described, EACO_LOG_FILE=str(log), CUDA_VISIBLE_DEVICES="GPU-a")
    assert rig.ended(rig.start_order(wanted)).exit_code == 0
    environment = json.loads(described.read_text())["environment"]
    assert environment["CUDA_VISIBLE_DEVICES"] == "GPU-a"
    assert (environment["EACO_JOB_ID"], environment["EACO_LEASE_TOKEN"]) == (wanted.job_id, "1")
    assert "CUDA_VISIBLE_DEVICES='0' was already set" in log.read_text()


@pytest.mark.parametrize("inherited", ["MIG-3f2a", "GPU-3f2a", "0,1", ""])
def test_c44_a_task_without_a_gpu_sees_none_whatever_its_surroundings_chose(
    inherited, rig, tmp_path, monkeypatch
):
    """Every text that CUDA knows may stand there; the task starts, and what it sees is the empty one."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", inherited)
    described, log = tmp_path / "seen", tmp_path / "job.log"
    wanted = rig.order("describe", described, EACO_LOG_FILE=str(log), **environment_without_gpu())
    assert rig.ended(rig.start_order(wanted)).exit_code == 0
    assert json.loads(described.read_text())["environment"]["CUDA_VISIBLE_DEVICES"] == ""


def test_c31_ten_starts_leave_nothing_in_the_starter(rig, tmp_path):
    """The starter never loads what jobs load; ten jobs leave it as many threads and files as one did."""

    def entries(folder):
        return len(list(Path("/proc", folder).iterdir()))

    def state():
        return threading.active_count(), entries("self/fd"), entries("self/task")

    states = []
    for number in range(11):
        described = tmp_path / str(number)
        assert rig.ended(rig.start("describe", described)).exit_code == 0
        assert json.loads(described.read_text())["cuda"] == "fake_cuda"
        states.append(state())
    assert set(states) == {states[0]}
    assert "fake_cuda" not in sys.modules
    server = rig.server().pid
    assert entries(f"{server}/fd") < 12, "the forkserver keeps no file per job"
    assert entries(f"{server}/task") == 1


def test_preloaded_modules_are_loaded_once_and_not_here(rig, tmp_path):
    """Modules to preload are imported by the forkserver; one that fails is left to the jobs."""
    prepared = LocalDispatcher(["fake_cuda", "failing_module"])
    prepared.warm_up()
    described = tmp_path / "seen"
    reference = rig.start_order(rig.order("describe", described), by=prepared)
    assert rig.ended(reference, by=prepared).exit_code == 0
    assert {"fake_cuda", "failing_module"}.isdisjoint(sys.modules)
    prepared.close(5.0)


def test_the_payload_may_be_large(rig, tmp_path):
    """A payload of megabytes arrives whole; nothing of it shows in the process list."""
    log = tmp_path / "job.log"
    payload = "ü" * 2_000_000
    assert rig.ended(rig.start("write", payload, EACO_LOG_FILE=str(log))).exit_code == 0
    assert payload in log.read_text()


def test_a_killed_forkserver_is_replaced(rig, tmp_path):
    """After kill -9 of the forkserver its jobs live on and are known, without exit codes; new ones start."""
    place = tmp_path / "pid"
    first = rig.start("wait", place)
    rig.pids_in(place)
    server = rig.server().pid
    os.kill(server, signal.SIGKILL)
    second = rig.start("exit_with", "0")
    assert rig.ended(second).exit_code == 0
    assert rig.dispatcher.poll(first).alive
    rig.dispatcher.kill(first, grace_s=0.0)
    assert rig.ended(first).exit_code is None
    assert not Path(f"/proc/{server}").exists(), "it was collected"


def test_a_start_after_the_forkserver_died_unseen(rig):
    """A start that finds its forkserver dead makes a new one, on which the same order starts."""
    rig.ended(rig.start("exit_with", "0"))
    os.kill(rig.server().pid, signal.SIGKILL)
    rig.server().wait()
    assert rig.ended(rig.start("exit_with", "5")).exit_code == 5


@pytest.mark.parametrize("is_stopped", [False, True], ids=["well", "stopped"])
def test_c24_close_returns_within_its_bound_and_leaves_jobs_alone(rig, tmp_path, is_stopped):
    """Closing ends the forkserver even if it no longer answers; a running group goes on and can be ended."""
    place = tmp_path / "pid"
    reference = rig.start("wait", place)
    rig.pids_in(place)
    server = rig.server()
    if is_stopped:
        server.send_signal(signal.SIGSTOP)
    rig.dispatcher.close(0.2)
    rig.dispatcher.close(0.2)
    assert server.returncode is not None
    assert rig.dispatcher.poll(reference).alive
    rig.dispatcher.kill(reference, grace_s=0.0)
    assert rig.ended(reference).exit_code is None


def test_fork_of_the_starter_makes_a_forkserver_of_its_own(rig):
    """A fork of the scheduler that uses its copy of the dispatcher does not disturb the original."""
    rig.ended(rig.start("exit_with", "0"))
    child = os.fork()
    if child == 0:
        rig.start("exit_with", "0")
        rig.dispatcher.close(5.0)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert rig.ended(rig.start("exit_with", "6")).exit_code == 6
