import json
import os
import signal
import subprocess
import sys

import pytest

from airflow_provider_eaco.dispatch.local import LocalDispatcher
from airflow_provider_eaco.dispatch.process_group import ProcessReference, boot_id, read_processes

STARTER = """
import json, sys
from airflow_provider_eaco.core.ports import LaunchOrder
from airflow_provider_eaco.dispatch.local import LocalDispatcher

sys.path[:] = json.loads(sys.argv[1])
order = LaunchOrder(**json.loads(sys.argv[2]))
dispatcher = LocalDispatcher()
try:
    print(dispatcher.start(order), flush=True)
    sys.stdin.read()
except KeyboardInterrupt:
    print("interrupted", dispatcher.start(order), dispatcher.poll(dispatcher.start(order)).alive, flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def pids_in(until):
    """Wait for the file in which a job writes its pids, and return them."""

    def read(place):
        return json.loads(
            until(lambda: place.exists() and place.read_text(), "the pids of the job's processes")
        )

    return read


@pytest.fixture
def starter(references):
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
        references.append(reference)
        return process, reference

    yield start
    for process in running:
        process.kill()
        process.wait()
        process.stdin.close()
        process.stdout.close()


def test_c27_a_kill_ends_loaders_that_ignore_it(dispatcher, order, ended, alive, pids_in, tmp_path):
    """After the grace nothing is left: children deaf to SIGTERM, detached by setsid or a double fork, without
    our markers, with open pipes.
    """
    place = tmp_path / "pids"
    reference = dispatcher.start(order("train_with_loaders", place))
    pids = pids_in(place)
    assert alive(pids) == pids
    dispatcher.kill(reference, grace_s=0.3)
    assert dispatcher.poll(reference).alive, "they are deaf: the group lives until SIGKILL"
    assert ended(reference).exit_code == 128 + signal.SIGTERM
    assert alive(pids) == []


def test_c27_a_kill_without_the_keeper_ends_the_rest(
    dispatcher, order, ended, alive, until, pids_in, tmp_path
):
    """Even if the keeper is killed in the middle, all that were seen, are marked or in its session end."""
    place = tmp_path / "pids"
    reference = dispatcher.start(order("train_with_loaders", place))
    pids = pids_in(place)
    dispatcher.kill(reference, grace_s=0.3)
    keeper = ProcessReference.parse(reference).pid
    os.kill(keeper, signal.SIGKILL)
    until(lambda: alive([keeper]) == [])
    assert dispatcher.poll(reference).alive
    assert ended(reference).exit_code == -signal.SIGKILL
    assert alive(pids) == []


def test_a_group_whose_keeper_was_killed_still_lives(
    dispatcher, order, ended, alive, until, pids_in, tmp_path
):
    """The keeper's end alone frees nothing: session and markers show that the job goes on."""
    place = tmp_path / "pid"
    reference = dispatcher.start(order("wait", place))
    job = pids_in(place)
    keeper = ProcessReference.parse(reference).pid
    os.kill(keeper, signal.SIGKILL)
    until(lambda: alive([keeper]) == [])
    assert dispatcher.poll(reference).alive
    os.kill(job, signal.SIGKILL)
    assert ended(reference).exit_code == -signal.SIGKILL


def test_what_a_finished_job_leaves_behind_is_ended(dispatcher, order, ended, alive, pids_in, tmp_path):
    """A detached child outlives its job by a short grace at most; until then the group counts as alive."""
    log = tmp_path / "job.log"
    place = tmp_path / "pids"
    reference = dispatcher.start(order("leave_loaders_behind", place, EACO_LOG_FILE=str(log)))
    pids = pids_in(place)
    assert ended(reference).exit_code == 0
    assert alive(pids) == []
    assert f"left processes behind, which are ended now: {pids[0]}" in log.read_text()


def test_a_polite_end_needs_no_sigkill(dispatcher, order, ended, pids_in, tmp_path):
    """A job that leaves on SIGTERM is gone long before a long grace is over."""
    place = tmp_path / "pid"
    reference = dispatcher.start(order("wait", place))
    pids_in(place)
    dispatcher.kill(reference, grace_s=10_000)
    assert ended(reference).exit_code == 128 + signal.SIGTERM


def test_a_kill_may_be_repeated(dispatcher, order, ended, pids_in, tmp_path):
    """A second kill cannot prolong the first one's grace but shorten it; a late one does nothing."""
    place = tmp_path / "pids"
    reference = dispatcher.start(order("train_with_loaders", place))
    pids_in(place)
    dispatcher.kill(reference, grace_s=10_000)
    assert dispatcher.poll(reference).alive
    dispatcher.kill(reference, grace_s=0.0)
    dispatcher.kill(reference, grace_s=10_000)
    assert not ended(reference).alive
    dispatcher.kill(reference, grace_s=0.0)
    assert not dispatcher.poll(reference).alive


def test_c21_jobs_outlive_a_killed_starter_and_are_found_again(
    dispatcher, starter, order, ended, alive, pids_in, tmp_path
):
    """After kill -9 of the starter another process knows the group by its reference, ends it, and learns no
    exit code.
    """
    place = tmp_path / "pids"
    process, reference = starter(order("train_with_loaders", place))
    pids = pids_in(place)
    process.kill()
    process.wait()
    assert dispatcher.poll(reference).alive
    assert alive(pids) == pids
    dispatcher.kill(reference, grace_s=0.1)
    assert ended(reference).exit_code is None
    assert alive(pids) == []


def test_c21_a_start_that_was_never_recorded_is_not_done_twice(dispatcher, starter, order, pids_in, tmp_path):
    """Starting a lease whose group lives returns that group; another lease of the job is another group."""
    place = tmp_path / "pid"
    wanted = order("wait", place)
    process, reference = starter(wanted)
    pids_in(place)
    process.kill()
    process.wait()
    for _ in range(20):
        assert dispatcher.start(wanted) == reference
    assert dispatcher.start(order("wait", place, job_id=wanted.job_id, token=2)) != reference


def test_the_forkserver_ends_with_a_killed_starter(starter, order, until, alive, pids_in, tmp_path):
    """A killed starter leaves its jobs and nothing else, even if somebody holds a copy of its connection."""
    place = tmp_path / "pid"
    process, _ = starter(order("wait", place))
    pids_in(place)
    children = subprocess.run(
        ["ps", "-o", "pid=", "--ppid", str(process.pid)], capture_output=True, text=True, check=True
    )
    servers = [int(pid) for pid in children.stdout.split()]
    assert len(servers) == 1
    process.kill()
    until(lambda: alive(servers) == [], "the end of the forkserver")


def test_ctrl_c_in_the_starter_s_terminal_reaches_no_job(starter, order, alive, pids_in, tmp_path):
    """Ctrl-C signals the terminal's process group: neither the forkserver nor a job is in it."""
    place = tmp_path / "pid"
    process, reference = starter(order("wait", place))
    pid = pids_in(place)
    os.killpg(process.pid, signal.SIGINT)
    assert process.stdout.readline().split() == ["interrupted", reference, "True"]
    assert alive([pid]) == [pid]


def test_a_reused_pid_is_not_the_group(dispatcher):
    """A living process whose start time differs is somebody else: the group is gone, and a kill spares it."""
    with subprocess.Popen(["sleep", "60"], start_new_session=True) as stranger:
        former = str(ProcessReference.here(stranger.pid, 1, token=1, job_id="former"))
        assert not dispatcher.poll(former).alive
        dispatcher.kill(former, grace_s=0.0)
        dispatcher.poll(former)
        assert stranger.poll() is None
        stranger.kill()


def test_places_that_cannot_be_seen(dispatcher):
    """A group of another host counts as alive, for nothing proves its end; one of an earlier boot is gone."""
    elsewhere = ProcessReference(1, 1, "another-host", boot_id(), 1, "job")
    before = ProcessReference.here(os.getpid(), 1, 1, "job")
    rebooted = str(before).replace(boot_id(), "00000000")
    assert dispatcher.poll(str(elsewhere)).alive
    assert not dispatcher.poll(rebooted).alive
    for reference in (str(elsewhere), rebooted):
        dispatcher.kill(reference, grace_s=0.0)


def test_polling_living_groups_reads_no_process_table(dispatcher, order, monkeypatch, tmp_path):
    """While the keepers live, a poll costs one small file a group."""
    groups = [dispatcher.start(order("wait", tmp_path / str(number))) for number in range(3)]
    monkeypatch.setattr(
        "airflow_provider_eaco.dispatch.local.read_processes", lambda: pytest.fail("a full scan")
    )
    assert all(dispatcher.poll(group).alive for group in groups)


def test_adopted_groups_share_one_process_table(starter, order, until, alive, pids_in, tmp_path, monkeypatch):
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
        groups.append(starter(order("wait", place))[1])
        pids_in(place)
        keeper = ProcessReference.parse(groups[-1]).pid
        os.kill(keeper, signal.SIGKILL)
        until(lambda keeper=keeper: alive([keeper]) == [])
    assert all(adopter.poll(group).alive for group in groups)
    now[0] = 10.0
    reads.clear()
    assert all(adopter.poll(group).alive for group in groups)
    assert len(reads) == 1
