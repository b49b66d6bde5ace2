"""The numbers on the page add up and are those of the API, while tasks come and go (C64)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.system.page.browser import Watch
from tests.system.rig import Rig

pytestmark = [pytest.mark.airflow]

KEEP_ANSWERS = """
const fetched = window.fetch;
window.answers = [];
window.fetch = async (...given) => {
  const answer = await fetched(...given);
  if (answer.ok) answers.push({ path: String(given[0]), body: await answer.clone().json() });
  return answer;
};
"""
# An answer that has just come may not be drawn yet, so that a look counts if none came for a while.
READ_NUMBERS = """
async (view) => {
  const before = answers.length;
  await new Promise((done) => setTimeout(done, 400));
  const told = answers.filter((each) => each.path.includes(view));
  if (answers.length !== before || !told.length) return null;
  const stats = [...document.querySelectorAll(".stats .stat")].map((each) => [
    each.querySelector("dt").textContent, each.querySelector("dd").textContent]);
  return {
    body: told.at(-1).body,
    stats: Object.fromEntries(stats),
    tab: document.querySelector("nav .count")?.textContent ?? "0",
    rows: document.querySelectorAll("main tbody tr").length,
    line: document.querySelector("main .toolbar .fine")?.textContent,
    pools: [...document.querySelectorAll("section.pool > p")].map((each) => each.textContent),
  };
}
"""


def compare_queue(told: Any) -> int:
    """Require one number in the list, the line above it, the tab and the totals; return it."""
    body = told["body"]
    waiting = len(body["items"])
    assert body["total"] == waiting
    shown = (told["stats"]["waiting"], told["tab"], told["line"], told["rows"])
    assert shown == (str(waiting), str(waiting), f"{waiting} waiting", waiting)
    return waiting


def compare_cluster(told: Any) -> int:
    """Require the answer's totals and pools on the page, and never more used than there is; return how many
    GPUs are used.
    """
    body, stats = told["body"], told["stats"]
    totals = body["summary"]
    used = len([gpu for node in body["nodes"] for gpu in node["gpus"] if gpu["residents"]])
    assert used == int(totals["gpus_used"]) <= int(totals["gpus"])
    assert len(body["residents"]) == int(totals["running"])
    assert sum(int(pool["waiting"]) for pool in body["pools"]) <= int(totals["waiting"])
    assert stats["GPUs in use"] == f"{totals['gpus_used']} of {totals['gpus']}"
    assert (stats["running"], stats["waiting"], told["tab"]) == (
        totals["running"],
        totals["waiting"],
        totals["waiting"],
    )
    assert told["pools"] == [
        f"{pool['gpus_used']} of {pool['gpus']} GPUs in use, {pool['gpus_shared']} shared; "
        f"{pool['running']} running, {pool['waiting']} waiting"
        for pool in body["pools"]
    ]
    return used


def test_c64_the_page_shows_the_apis_numbers_while_tasks_come_and_go(
    rig: Rig, open_page: Callable[..., tuple[Any, Watch]]
) -> None:
    """While eight tasks take turns on two nodes, each look at either view finds what one answer said."""
    views = {
        "queue": (open_page("/eaco/#queue", script=KEEP_ANSWERS)[0], compare_queue),
        "overview": (open_page("/eaco/", script=KEEP_ANSWERS)[0], compare_cluster),
    }
    flood = rig.run("told_churn")
    seen: dict[str, set[int]] = {view: set() for view in views}

    def looked() -> bool:
        for view, (page, compare) in views.items():
            told = page.evaluate(READ_NUMBERS, view)
            if told is not None:
                seen[view].add(compare(told))
        for entry in flood.started:
            flood.end("work", entry["map_index"])
        return not rig.leases() and len(flood.started) == 8

    rig.wait_for(looked, lambda: f"the eight have come and gone: {flood.started}, {rig.leases()}")
    flood.wait_done()
    assert min(map(len, seen.values())) >= 2, f"both were seen to change: {seen}"
