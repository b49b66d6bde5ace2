import os
import signal
import subprocess
import sys

import pytest

from airflow_provider_eaco.dispatch.process_group import (
    Process,
    ProcessReference,
    descendants_of,
    members_of,
    read_process,
    send_signal,
)

# Pids above the kernel's largest possible one: nothing in /proc can answer for them.
LEADER = 5_000_000
OTHER = 6_000_000


def process(
    pid: int, *, parent: int = 1, session: int = OTHER, start: int = 100, state: str = "S"
) -> Process:
    return Process(pid, state, parent, session, start)


def table(*processes: Process) -> dict[int, Process]:
    return {each.pid: each for each in processes}


def reference(start: int = 100) -> ProcessReference:
    return ProcessReference.here(LEADER, start, token=7, job_id="job-1")


MEMBERSHIP = {
    "the leader itself": (table(process(LEADER, session=LEADER)), {LEADER}),
    "its session, the leader gone": (table(process(LEADER + 1, session=LEADER)), {LEADER + 1}),
    "a descendant in another session": (
        table(
            process(LEADER, session=LEADER),
            process(LEADER + 1, parent=LEADER, session=LEADER),
            process(LEADER + 2, parent=LEADER + 1, session=LEADER + 2),
        ),
        {LEADER, LEADER + 1, LEADER + 2},
    ),
    "a child of a session member, the leader gone": (
        table(
            process(LEADER + 1, session=LEADER), process(LEADER + 2, parent=LEADER + 1, session=LEADER + 2)
        ),
        {LEADER + 1, LEADER + 2},
    ),
    "a strange process": (table(process(OTHER)), set()),
    "a pid used again, with children in its session": (
        table(process(LEADER, session=LEADER, start=500), process(LEADER + 1, parent=LEADER, session=LEADER)),
        set(),
    ),
    "a zombie leader": (table(process(LEADER, session=LEADER, state="Z")), set()),
    "a zombie leader with a living session": (
        table(process(LEADER, session=LEADER, state="Z"), process(LEADER + 1, session=LEADER)),
        {LEADER + 1},
    ),
}


@pytest.mark.parametrize(("processes", "expected"), MEMBERSHIP.values(), ids=MEMBERSHIP.keys())
def test_members_are_the_living_of_leader_session_and_descendants(processes, expected):
    """A group is its leader, the leader's session and all descendants; dead ones and reused pids are not."""
    assert set(members_of(reference(), processes)) == expected


def test_descendants_end_at_a_circle():
    """A table that was read while pids changed hands cannot make the search run for ever."""
    circle = table(process(11, parent=12), process(12, parent=11))
    assert descendants_of([11], circle) == {12}


@pytest.mark.parametrize("job_id", ["job-1", "manual__2026-01-01T00:00:00+00:00", "", "ü"])
def test_a_reference_survives_its_text(job_id):
    """Whatever the job is called, a reference read back from its text is the same one."""
    written = ProcessReference.here(12, 345, 7, job_id)
    assert ProcessReference.parse(str(written)) == written
    assert written.on_this_host
    assert written.since_this_boot


@pytest.mark.parametrize("text", ["", "12", "12:345:host", "x:345:host:boot:7:job", "12:x:host:boot:7:job"])
def test_a_text_that_is_no_reference_is_named(text):
    """A stored text that is no reference is refused with the text and the form it should have."""
    with pytest.raises(ValueError, match=r"reference: .* is not of the form pid:start_ticks:host"):
        ProcessReference.parse(text)


def test_a_name_with_parentheses_is_read():
    """The kernel prints a process's name unescaped; a hostile one does not shift the other fields."""
    code = "import ctypes; ctypes.CDLL(None).prctl(15, b') Z 1 (', 0, 0, 0); print(flush=True); input()"
    child = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        assert child.stdout.read(1) == b"\n"
        seen = read_process(child.pid)
        assert seen.alive
        assert (seen.pid, seen.parent) == (child.pid, os.getpid())
    finally:
        child.communicate(b"\n")


def test_a_reused_pid_is_not_signalled():
    """A signal meant for a process that is gone does not reach the one that has its pid now."""
    with subprocess.Popen(["sleep", "60"]) as child:
        present = read_process(child.pid)
        former = Process(present.pid, "S", present.parent, present.session, present.start_ticks - 1)
        send_signal(former, signal.SIGKILL)
        assert child.poll() is None
        send_signal(present, signal.SIGTERM)
        assert child.wait() == -signal.SIGTERM
