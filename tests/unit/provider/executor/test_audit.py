"""The reasons in Airflow's audit log: which lines are written, and when."""

from itertools import pairwise
from types import SimpleNamespace

from airflow_provider_eaco.core.model.decision import Finding, Reason, hold
from airflow_provider_eaco.provider.audit import LINES_PER_HEARTBEAT, ReasonLog, text_of
from tests.unit.provider.executor.lane_rig import FakeHost


class Clock:
    """A clock that the test sets."""

    now_s = 0.0


def waiting(free):
    return hold(Finding(Reason.WAITING_FOR_GPU, {"wanted": 1, "free": free, "sharing": "no"}))


def keys_of(*job_ids):
    return [(job_id, SimpleNamespace(task_id=job_id)) for job_id in job_ids]


def test_reasons_are_told_on_change_and_a_few_at_a_time():
    """A long queue gets its lines over some heartbeats, new reasons before new numbers."""
    host = FakeHost()
    reasons = ReasonLog(host)
    reasons.note(keys_of(*(f"j{number}" for number in range(LINES_PER_HEARTBEAT + 1))), waiting(0))
    reasons.flush()
    assert len(host.told) == LINES_PER_HEARTBEAT
    reasons.note(keys_of("j0"), waiting(3))
    reasons.flush()
    later = [told[2] for told in host.told[LINES_PER_HEARTBEAT:]]
    assert later == [text_of(waiting(0)), text_of(waiting(3))]
    reasons.note(keys_of(*(f"j{number}" for number in range(1, LINES_PER_HEARTBEAT + 1))), waiting(0))
    reasons.flush()
    assert len(host.told) == LINES_PER_HEARTBEAT + 2


def told_at(seconds, numbers):
    """Return the instants at which a line was written, when each of these seconds has its own number."""
    host, clock = FakeHost(), Clock()
    reasons = ReasonLog(host, lambda: clock.now_s)
    instants = []
    for second, number in zip(seconds, numbers, strict=True):
        clock.now_s = float(second)
        before = len(host.told)
        reasons.note(keys_of("j"), waiting(number))
        reasons.flush()
        if len(host.told) > before:
            instants.append(second)
            assert host.told[-1][2] == text_of(waiting(number))
    return instants


def test_new_numbers_are_told_at_once_and_more_rarely_the_longer_the_reason_stands():
    """The log is behind by a tenth of the time at most; a number that rests is told once."""
    assert told_at([0, 1, 2, 3], [0, 3, 3, 0]) == [0, 1, 3]
    day = told_at(range(86400), range(86400))
    assert 90 <= len(day) <= 110
    # One second more, since it looks once a second.
    assert all(later - earlier <= later / 10 + 1 for earlier, later in pairwise(day))
    # The number came back before its turn: the log is right already.
    assert told_at([0, 100, 101, 102, 200], [0, 1, 2, 1, 1]) == [0, 100]


def test_a_new_reason_is_told_at_once_however_long_the_one_before_stood():
    """The share counts from the new reason's own beginning."""
    host, clock = FakeHost(), Clock()
    reasons = ReasonLog(host, lambda: clock.now_s)
    for now_s, decision in ((0, waiting(0)), (1000, waiting(1)), (1001, hold(Finding(Reason.ON_HOLD)))):
        clock.now_s = float(now_s)
        reasons.note(keys_of("j"), decision)
        reasons.flush()
    clock.now_s = 1002.0
    reasons.note(keys_of("j"), waiting(2))
    reasons.flush()
    clock.now_s = 1003.0
    reasons.note(keys_of("j"), waiting(3))
    reasons.flush()
    assert len(host.told) == 5


def test_c34_memory_and_processes_of_others_that_change_all_the_time_do_not_fill_the_log():
    """In an hour in which a stranger's MiB differ in each heartbeat, and its PID now and then, a task that
    waits for it gets some tens of lines; the last one is at most a tenth of the time old.
    """
    host, clock = FakeHost(), Clock()
    reasons = ReasonLog(host, lambda: clock.now_s)
    for second in range(3600):
        clock.now_s = float(second)
        who = f"PID {4711 + second // 600} (alice)"
        numbers = {"foreign_mib": 9000 + second, "node": "gpu-1", "who": who}
        reasons.note(keys_of("j"), hold(Finding(Reason.FOREIGN_USE, numbers)))
        reasons.flush()
    assert 50 <= len(host.told) <= 80
    last = host.told[-1][2]
    assert "9000 MiB on node gpu-1, processes: PID 4711 (alice)" in host.told[0][2]
    assert int(last.split(" MiB")[0].split(": ")[-1]) - 9000 >= 0.9 * 3600 - 1
    assert "(alice)" in last
