import json
import os
import signal
import subprocess
import sys

import pytest

from airflow_provider_eaco.dispatch.local import LocalDispatcher
from airflow_provider_eaco.dispatch.process_group import ProcessReference, boot_id, read_processes

STARTER = """
import json, signal, sys
from airflow_provider_eaco.core.ports import LaunchOrder
from airflow_provider_eaco.dispatch.local import LocalDispatcher

sys.path[:] = json.loads(sys.argv[1])
signal.signal(signal.SIGINT, signal.default_int_handler)  # also where the tests run in the background
order = LaunchOrder(**json.loads(sys.argv[2]))
dispatcher = LocalDispatcher()
dispatcher.warm_up(30)
try:
    print(dispatcher.start(order), flush=True)
    sys.stdin.read()
except KeyboardInterrupt:
    print("interrupted", dispatcher.start(order), dispatcher.poll(dispatcher.start(order)).alive, flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def starter(rig):
    """Start a job from another process; returns that process and the reference."""
    running = []

    def start(order):
        fields = {name: getattr(order, name) for name in ("job_id", "token", "entry_point", "payload")}
        fields["environment"] = dict(order.environment)
        command = [sys.executable, "-c", STARTER, json.dumps(sys.path), json.dumps(fields)]
        # A session of its own, so that a signal to its group is what Ctrl-C is to a terminal's.
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True
        )
        running.append(process)
        reference = process.stdout.readline().strip()
        rig.references.append(reference)
        return process, reference

    yield start
    for process in running:
        process.kill()
        process.wait()
        process.stdin.close()
        process.stdout.close()


def test_c27_a_kill_ends_loaders_that_ignore_it(rig, tmp_path):
    """After the grace nothing is left: children deaf to SIGTERM, detached by setsid or a double fork, without
    our markers, with open pipes.
    """
    place = tmp_path / "pids"
    reference = rig.start("train_with_loaders", place)
    pids = rig.pids_in(place)
    assert rig.alive(pids) == pids
    rig.dispatcher.kill(reference, grace_s=0.3)
    assert rig.dispatcher.poll(reference).alive, "they are deaf: the group lives until SIGKILL"
    assert rig.ended(reference).exit_code == 128 + signal.SIGTERM
    assert rig.alive(pids) == []


def test_c27_a_kill_without_the_keeper_ends_the_rest(rig, tmp_path):
    """Even if the keeper is killed in the middle, all that were seen, are marked or in its session end."""
    place = tmp_path / "pids"
    reference = rig.start("train_with_loaders", place)
    pids = rig.pids_in(place)
    rig.dispatcher.kill(reference, grace_s=0.3)
    rig.kill_keeper(reference)
    assert rig.dispatcher.poll(reference).alive
    assert rig.ended(reference).exit_code == -signal.SIGKILL
    assert rig.alive(pids) == []


def test_a_group_whose_keeper_was_killed_still_lives(rig, tmp_path):
    """The keeper's end alone frees nothing: session and markers show that the job goes on."""
    place = tmp_path / "pid"
    reference = rig.start("wait", place)
    job = rig.pids_in(place)
    rig.kill_keeper(reference)
    assert rig.dispatcher.poll(reference).alive
    os.kill(job, signal.SIGKILL)
    assert rig.ended(reference).exit_code == -signal.SIGKILL


def test_what_a_finished_job_leaves_behind_is_ended(rig, tmp_path):
    """A detached child outlives its job by a short grace at most; until then the group counts as alive."""
    log = tmp_path / "job.log"
    place = tmp_path / "pids"
    reference = rig.start("leave_loaders_behind", place, EACO_LOG_FILE=str(log))
    pids = rig.pids_in(place)
    assert rig.ended(reference).exit_code == 0
    assert rig.alive(pids) == []
    assert f"left processes behind, which are ended now: {pids[0]}" in log.read_text()


def test_a_polite_end_needs_no_sigkill(rig, tmp_path):
    """A job that leaves on SIGTERM is gone long before a long grace is over."""
    place = tmp_path / "pid"
    reference = rig.start("wait", place)
    rig.pids_in(place)
    rig.dispatcher.kill(reference, grace_s=10_000)
    assert rig.ended(reference).exit_code == 128 + signal.SIGTERM


def test_a_kill_may_be_repeated(rig, tmp_path):
    """A second kill cannot prolong the first one's grace but shorten it; a late one does nothing."""
    place = tmp_path / "pids"
    reference = rig.start("train_with_loaders", place)
    rig.pids_in(place)
    rig.dispatcher.kill(reference, grace_s=10_000)
    assert rig.dispatcher.poll(reference).alive
    rig.dispatcher.kill(reference, grace_s=0.0)
    rig.dispatcher.kill(reference, grace_s=10_000)
    assert not rig.ended(reference).alive
    rig.dispatcher.kill(reference, grace_s=0.0)
    assert not rig.dispatcher.poll(reference).alive


def test_c21_jobs_outlive_a_killed_starter_and_are_found_again(rig, starter, tmp_path):
    """After kill -9 of the starter another process knows the group by its reference, ends it, and learns no
    exit code.
    """
    place = tmp_path / "pids"
    process, reference = starter(rig.order("train_with_loaders", place))
    pids = rig.pids_in(place)
    process.kill()
    process.wait()
    assert rig.dispatcher.poll(reference).alive
    assert rig.alive(pids) == pids
    rig.dispatcher.kill(reference, grace_s=0.1)
    assert rig.ended(reference).exit_code is None
    assert rig.alive(pids) == []


def test_c21_a_start_that_was_never_recorded_is_not_done_twice(rig, starter, tmp_path):
    """Starting a lease whose group lives returns that group; another lease of the job is another group."""
    place = tmp_path / "pid"
    wanted = rig.order("wait", place)
    process, reference = starter(wanted)
    rig.pids_in(place)
    process.kill()
    process.wait()
    for _ in range(20):
        assert rig.start_order(wanted) == reference
    assert rig.start("wait", place, job_id=wanted.job_id, token=2) != reference


def test_the_forkserver_ends_with_a_killed_starter(rig, starter, tmp_path):
    """A killed starter leaves its jobs and nothing else, even if somebody holds a copy of its connection."""
    place = tmp_path / "pid"
    process, _ = starter(rig.order("wait", place))
    rig.pids_in(place)
    children = subprocess.run(
        ["ps", "-o", "pid=", "--ppid", str(process.pid)], capture_output=True, text=True, check=True
    )
    servers = [int(pid) for pid in children.stdout.split()]
    assert len(servers) == 1
    process.kill()
    rig.until(lambda: rig.alive(servers) == [], "the end of the forkserver")


def test_ctrl_c_in_the_starter_s_terminal_reaches_no_job(rig, starter, tmp_path):
    """Ctrl-C signals the terminal's process group: neither the forkserver nor a job is in it."""
    place = tmp_path / "pid"
    process, reference = starter(rig.order("wait", place))
    pid = rig.pids_in(place)
    os.killpg(process.pid, signal.SIGINT)
    assert process.stdout.readline().split() == ["interrupted", reference, "True"]
    assert rig.alive([pid]) == [pid]


def test_a_reused_pid_is_not_the_group(rig):
    """A living process whose start time differs is somebody else: the group is gone, and a kill spares it."""
    with subprocess.Popen(["sleep", "60"], start_new_session=True) as stranger:
        former = str(ProcessReference.here(stranger.pid, 1, token=1, job_id="former"))
        assert not rig.dispatcher.poll(former).alive
        rig.dispatcher.kill(former, grace_s=0.0)
        rig.dispatcher.poll(former)
        assert stranger.poll() is None
        stranger.kill()


def test_places_that_cannot_be_seen(rig):
    """A group of another host counts as alive, for nothing proves its end; one of an earlier boot is gone."""
    elsewhere = ProcessReference(1, 1, "another-host", boot_id(), 1, "job")
    before = ProcessReference.here(os.getpid(), 1, 1, "job")
    rebooted = str(before).replace(boot_id(), "00000000")
    assert rig.dispatcher.poll(str(elsewhere)).alive
    assert not rig.dispatcher.poll(rebooted).alive
    for reference in (str(elsewhere), rebooted):
        rig.dispatcher.kill(reference, grace_s=0.0)


def test_polling_living_groups_reads_no_process_table(rig, monkeypatch, tmp_path):
    """While the keepers live, a poll costs one small file a group."""
    groups = [rig.start("wait", tmp_path / str(number)) for number in range(3)]
    monkeypatch.setattr(
        "airflow_provider_eaco.dispatch.local.read_processes", lambda: pytest.fail("a full scan")
    )
    assert all(rig.dispatcher.poll(group).alive for group in groups)


def test_adopted_groups_share_one_process_table(rig, starter, tmp_path, monkeypatch):
    """Strays of several adopted groups are judged by one pass over the processes in each batch of polls."""
    reads = []

    def counted():
        reads.append(1)
        return read_processes()

    monkeypatch.setattr("airflow_provider_eaco.dispatch.local.read_processes", counted)
    now = [0.0]
    adopter = LocalDispatcher(monotonic=lambda: now[0])
    groups = []
    for number in range(3):
        place = tmp_path / str(number)
        groups.append(starter(rig.order("wait", place))[1])
        rig.pids_in(place)
        rig.kill_keeper(groups[-1])
    assert all(adopter.poll(group).alive for group in groups)
    now[0] = 10.0
    reads.clear()
    assert all(adopter.poll(group).alive for group in groups)
    assert len(reads) == 1
