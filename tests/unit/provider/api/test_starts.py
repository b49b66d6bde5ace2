"""Expected starts for requests: a long queue costs no request anything (case C68)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from airflow_provider_eaco.core.lifecycle import JobPhase
from airflow_provider_eaco.core.ports import JobRecord, LedgerView
from airflow_provider_eaco.provider.api.starts import FEW_JOBS, FRESH_S, OLDEST_S, StartsBoard
from airflow_provider_eaco.provider.cli.facts import Facts
from airflow_provider_eaco.provider.whatif.expected import ExpectedStart
from airflow_provider_eaco.store.read_model import QueueEntry
from tests.builders import NOW_S, make_book, make_job

LONG = 1000


def facts(waiting: int) -> Facts:
    records = [JobRecord(make_job(f"job-{number}"), JobPhase.WAITING, "x") for number in range(waiting)]
    view = LedgerView(NOW_S, (), tuple(records), ())
    return Facts(view, (), tuple(map(QueueEntry, records)), {}, None, {}, make_book, {}, {})


class Rig:
    """A board whose searches are counted and run when the test says so."""

    def __init__(self, start_s: float = NOW_S + 500) -> None:
        self.now_s, self.searched, self.start_s = 0.0, 0, start_s
        self.due: list[Callable[[], None]] = []
        self.board = StartsBoard(self.find, spawn=self.due.append, monotonic=lambda: self.now_s)

    def find(self, _facts: Facts) -> dict[str, ExpectedStart]:
        self.searched += 1
        return {"job-0": ExpectedStart(self.start_s, None, None)}


def test_c68_no_request_searches_a_long_queue() -> None:
    """With 1,000 waiting a hundred requests search nothing and ask for one search in 10 s (C68)."""
    rig, long = Rig(), facts(LONG)
    assert [dict(rig.board.starts(long)) for _ in range(100)] == [{}] * 100
    assert (rig.searched, len(rig.due)) == (0, 1)
    rig.due.pop()()
    rig.now_s = FRESH_S - 1
    assert all("job-0" in rig.board.starts(long) for _ in range(100))
    assert (rig.searched, rig.due) == (1, [])
    rig.now_s = FRESH_S
    assert all("job-0" in rig.board.starts(long) for _ in range(100))
    assert (rig.searched, len(rig.due)) == (1, 1)


def test_what_is_old_or_past_is_not_told() -> None:
    """After a minute without a search nothing is known, nor is an instant that has passed a start."""
    rig, long = Rig(), facts(LONG)
    rig.board.starts(long)
    rig.due.pop()()
    later = replace(long, view=replace(long.view, now_s=rig.start_s))
    assert rig.board.starts(later) == {}
    rig.now_s = OLDEST_S
    assert rig.board.starts(long) == {}


def test_a_short_queue_is_searched_at_once() -> None:
    """Of a few jobs the first answer has the starts already."""
    rig = Rig()
    assert "job-0" in rig.board.starts(facts(FEW_JOBS))
    assert (rig.searched, rig.due) == (1, [])


def test_a_search_that_fails_shows_the_queue_all_the_same(caplog: Any) -> None:
    """An ordering that raises leaves starts unknown, is logged, and the next search is tried."""
    due: list[Callable[[], None]] = []

    def fail(_facts: Facts) -> dict[str, ExpectedStart]:
        raise RuntimeError("broken ordering")

    board = StartsBoard(fail, spawn=due.append, monotonic=lambda: 0.0)
    assert board.starts(facts(1)) == {}
    board.starts(facts(LONG))
    due.pop()()
    assert "broken ordering" in caplog.text
