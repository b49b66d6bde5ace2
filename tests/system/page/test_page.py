"""The page in a real Chromium: every view in both themes, live, steered, and unhurt by any name."""

from __future__ import annotations

import re
from collections.abc import Callable
from itertools import pairwise
from typing import Any
from urllib.parse import quote

import pytest

from tests.system.page.browser import (
    SCREENSHOTS,
    TIMEOUT_MS,
    Watch,
    axe_source,
    no_problems,
)
from tests.system.page.conftest import Client
from tests.system.rig import Rig

pytestmark = [pytest.mark.airflow]
playwright_api = pytest.importorskip("playwright.sync_api", reason="Playwright is in the group test")
expect = playwright_api.expect

VIEWS = ("cluster", "timeline", "queue", "energy", "profiles", "decisions")
THEMES = ("light", "dark")
UGLY = "<img src=x onerror=alert(1)>\"'&" + "x" * 218
WIDTHS = (1440, 700, 390)


@pytest.fixture(scope="module")
def scene(rig: Rig) -> Any:
    """A co-allocation that trains, tasks that hold a small node, and two that wait."""
    training = rig.run("confirmed", epochs=100_000)
    holders = rig.run("told_four")
    holders.wait_started()
    waiting = rig.run("told")
    waiting.wait_reason("waiting_for_gpu")
    later = rig.run("told_two")
    later.wait_reason("waiting_for_gpu")
    rig.wait_for(
        lambda: len({lease["job_id"] for lease in rig.leases() if lease["state"] == "confirmed"}) == 2,
        "a confirmed co-allocation",
    )
    yield {"training": training, "holder": holders, "waiting": waiting, "later": later}
    path = f"/dags/confirmed/dagRuns/{training.run_id}"
    rig.airflow.api.call("PATCH", path, {"state": "failed"})
    rig.end_runs()


def shown(page: Any) -> Any:
    """Return the content once it is there."""
    view = page.locator("main#view")
    expect(view).not_to_have_attribute("aria-busy", "true", timeout=TIMEOUT_MS)
    return view


@pytest.mark.parametrize("theme", THEMES)
def test_every_view_shows_and_complains_of_nothing(
    theme: str, scene: Any, open_page: Callable[..., tuple[Any, Watch]], tmp_path_factory: Any
) -> None:
    """Each view in each theme: no error, no failed request, nothing serious for axe-core, one screenshot."""
    axe = axe_source(tmp_path_factory.getbasetemp())
    SCREENSHOTS.mkdir(parents=True, exist_ok=True)
    page, watch = open_page("/eaco/", theme=theme)
    with no_problems(watch):
        for name in VIEWS:
            page.evaluate(f"location.hash = '{name}'")
            expect(page.locator("nav a[aria-current=page]")).to_have_text(re.compile(name, re.IGNORECASE))
            shown(page)
            page.screenshot(path=SCREENSHOTS / f"{name}-{theme}.png", full_page=True)
            assert page.evaluate("document.documentElement.dataset.theme") == theme
            assert serious(page, axe) == [], name


def serious(page: Any, axe: str) -> list[str]:
    """Return what axe-core finds that keeps people out."""
    # Evaluated by the browser's debugger, since the page's own policy lets no foreign script in.
    page.evaluate(axe)
    found = page.evaluate("axe.run({resultTypes: ['violations']}).then((told) => told.violations)")
    return [
        f"{each['id']}: {each['nodes'][0]['html'][:160]}"
        for each in found
        if each["impact"] in {"serious", "critical"}
    ]


def test_it_stands_in_the_navigation_and_follows_the_theme(
    scene: Any, open_page: Callable[..., tuple[Any, Watch]]
) -> None:
    """Airflow's navigation leads to it, and a switch of the theme in Airflow changes it at once."""
    page, watch = open_page("/")
    with no_problems(watch):
        page.get_by_role("link", name="GPUs").click()
        frame = page.frame_locator("iframe")
        expect(frame.get_by_role("heading", name="GPUs")).to_be_visible(timeout=TIMEOUT_MS)
        root = frame.locator("html")
        expect(root).to_have_attribute("data-theme", "light")
        page.evaluate("localStorage.setItem('theme', 'dark')")
        expect(root).to_have_attribute("data-theme", "dark")


def test_a_co_allocation_appears_by_itself(
    rig: Rig, scene: Any, open_page: Callable[..., tuple[Any, Watch]]
) -> None:
    """Two tasks that begin to share GPUs are on an open page 5 s later, without a reload."""
    page, _ = open_page("/eaco/")
    shown(page)
    run = rig.run("told_together")
    rig.wait_for(
        lambda: len([each for each in rig.leases() if each["node"] == run_node(rig, run)]) == 2,
        "both tasks hold the GPUs",
    )
    node = page.get_by_role("region", name=f"Node {run_node(rig, run)}")
    for task in ("J1", "J4"):
        expect(node.get_by_text(f"told_together.{task}", exact=True)).to_be_visible(timeout=5_000)
    run.end()
    run.wait_done()


def run_node(rig: Rig, run: Any) -> str | None:
    """Return the node on which a task of the run holds GPUs."""
    jobs = {
        row["job_id"]
        for row in rig.airflow.query("SELECT job_id FROM eaco_job WHERE dag_id = 'told_together'")
    }
    return next((each["node"] for each in rig.leases() if each["job_id"] in jobs), None)


NOTE_REQUESTS = """
const fetched = window.fetch;
window.askedAt = [];
window.fetch = (...given) => {
  window.askedAt.push(performance.now());
  return fetched(...given);
};
"""


def test_an_open_page_asks_at_most_every_two_seconds(
    rig: Rig, scene: Any, open_page: Callable[..., tuple[Any, Watch]]
) -> None:
    """Once loaded, a page sends one request in two seconds, and what did not change is not redrawn."""
    page, _ = open_page("/eaco/#queue", script=NOTE_REQUESTS)
    row = shown(page).locator("tbody tr").first
    row.evaluate("(node) => { node.marked = true; }")
    loaded = page.evaluate("askedAt.length")
    rig.wait_for(lambda: page.evaluate("askedAt.length") >= loaded + 4, "four more requests")
    asked_ms = page.evaluate("askedAt")[loaded - 1 :]
    assert min(later - earlier for earlier, later in pairwise(asked_ms)) > 1900
    assert row.evaluate("(node) => node.marked") is True


def test_names_lead_to_airflows_own_pages(
    rig: Rig, scene: Any, open_page: Callable[..., tuple[Any, Watch]]
) -> None:
    """A task's name leads to its task instance, its run's to the DAG run, also out of Airflow's frame."""
    waiting = scene["waiting"]
    address = f"/dags/told/runs/{quote(waiting.run_id, safe='')}"
    page, _ = open_page("/eaco/#queue", user="viewer")
    row = shown(page).locator("tr", has_text=waiting.run_id)
    expect(row.locator("a.chip")).to_have_attribute("href", f"{address}/tasks/work")
    expect(row.get_by_role("link", name=waiting.run_id)).to_have_attribute("href", address)
    page, watch = open_page("/plugin/eaco", user="viewer")
    frame = page.frame_locator("iframe")
    with no_problems(watch):
        # Whoever is on a node is named below it.
        frame.locator("a.chip").first.click(timeout=TIMEOUT_MS)
        page.wait_for_url(re.compile(r"/dags/[^/]+/runs/[^/]+/tasks/"), timeout=TIMEOUT_MS)


def test_the_queue_shows_expected_starts(scene: Any, open_page: Callable[..., tuple[Any, Watch]]) -> None:
    """An expected start stands there with its error; each of the two may be unknown."""
    page, watch = open_page("/", user="viewer")

    def told(route: Any) -> None:
        body = route.fetch().json()
        first, second = body["items"][:2]
        at_s = body["now_s"] + 755
        first |= {"expected_start_s": at_s, "earliest_start_s": at_s - 90, "latest_start_s": at_s + 120}
        second |= {"expected_start_s": None, "earliest_start_s": None, "latest_start_s": None}
        route.fulfill(json=body)

    page.route("**/api/v1/queue?*", told)
    with no_problems(watch):
        page.goto(page.url.rstrip("/") + "/eaco/#queue")
        rows = shown(page).locator("tbody tr")
        expect(rows.nth(0)).to_contain_text(re.compile(r"in 12 min.*± 2 min"))
        expect(rows.nth(1).locator("td").nth(6)).to_have_text("unknown")
        page.screenshot(path=SCREENSHOTS / "queue-expected.png")
    page.unroute_all()


def test_hold_and_release_from_the_page(
    rig: Rig, scene: Any, open_page: Callable[..., tuple[Any, Watch]]
) -> None:
    """A held task stays where it is while GPUs are free, every surface says why, and a release starts it."""
    waiting, holder = scene["waiting"], scene["holder"]
    page, watch = open_page("/eaco/#queue", user="user")
    row = shown(page).locator("tr", has_text=waiting.run_id)
    with no_problems(watch):
        row.get_by_role("button", name="Hold").click()
        expect(row.get_by_text("held by a user")).to_be_visible()
        told = waiting.wait_reason("on_hold")
        assert told.reason is not None
        assert told.reason.sentence == "held by a user"
        rig.wait_for(
            lambda: any("held by a user" in text for _, text in waiting.audit()), "the audit log says so"
        )
        holder.end()
        scene["later"].wait_started()
        rig.wait_cycles()
        assert waiting.started == []
        row.get_by_role("button", name="Release").click()
        waiting.wait_started()
        expect(row).to_have_count(0)


def test_the_reason_on_the_page_is_that_of_the_command_line(
    rig: Rig, scene: Any, open_page: Callable[..., tuple[Any, Watch]]
) -> None:
    """Page, `airflow eaco why` and audit log say the same sentence."""
    holder, run = rig.run("told_four"), rig.run("told_four")
    run.wait_reason("waiting_for_gpu")
    sentence = run.why()["sentence"]
    page, _ = open_page("/eaco/#queue", user="viewer")
    expect(shown(page).locator("tr", has_text=run.run_id).locator(".sentence")).to_have_text(sentence)
    assert any(sentence in text for _, text in run.audit())
    for each in (holder, run, scene["later"], scene["waiting"]):
        each.end()
    run.wait_done()


def test_a_viewer_sees_nothing_that_changes_and_cannot_forge_it(
    rig: Rig, scene: Any, clients: dict[str, Client], open_page: Callable[..., tuple[Any, Watch]]
) -> None:
    """A viewer's page has no changing control, and the request behind one is refused with 403."""
    for name in ("cluster", "queue", "profiles"):
        page, _ = open_page(f"/eaco/#{name}", user="viewer")
        view = shown(page)
        for label in ("Hold", "Release", "Drain", "Mark stale", "Forget", "Import a file"):
            assert view.get_by_role("button", name=label).count() == 0, (name, label)
            assert view.get_by_text(label, exact=True).count() == 0, (name, label)
    status = page.evaluate(
        "fetch('api/v1/nodes/small/drain', {method: 'POST'}).then((answer) => answer.status)"
    )
    assert status == 403


def test_drain_from_the_page(scene: Any, rig: Rig, open_page: Callable[..., tuple[Any, Watch]]) -> None:
    """Who may change pools drains a node and ends the drain; the node says so."""
    page, watch = open_page("/eaco/", user="op")
    node = shown(page).get_by_role("region", name="Node small")
    with no_problems(watch):
        node.get_by_role("button", name="Drain small").click()
        expect(node.get_by_text("draining", exact=True)).to_be_visible()
        node.get_by_role("button", name="End drain of small").click()
        expect(node.get_by_text("available", exact=True)).to_be_visible()


@pytest.fixture
def ugly(scene: Any, rig: Rig) -> Any:
    """Two co-residents whose DAG and task have ugly names, one of an ugly family; put right afterwards."""
    change = "UPDATE eaco_job SET dag_id = :dag_id, task_id = :task_id, family = :family WHERE job_id = :job"
    select = "SELECT dag_id, task_id, family FROM eaco_job WHERE job_id = :job"
    before = {}
    for task in ("alexnet", "vgg"):
        job_id = scene["training"].job_id(task)
        before[job_id] = rig.airflow.query(select, job=job_id)[0]
        family = UGLY if task == "alexnet" else before[job_id]["family"]
        rig.airflow.execute(change, job=job_id, dag_id=UGLY, task_id=UGLY, family=family)
    yield scene["training"].run_id
    for job_id, names in before.items():
        rig.airflow.execute(change, job=job_id, **names)


def require_fits(page: Any, what: str) -> None:
    """Require that nobody has to scroll sideways, however narrow the window is."""
    try:
        for width in WIDTHS:
            page.set_viewport_size({"width": width, "height": 900})
            excess = page.evaluate("document.documentElement.scrollWidth - innerWidth")
            assert excess <= 0, f"{what} is {excess} px too wide at {width} px"
    finally:
        page.set_viewport_size({"width": WIDTHS[0], "height": 900})


def test_ugly_names_do_no_harm(ugly: str, rig: Rig, open_page: Callable[..., tuple[Any, Watch]]) -> None:
    """Names of 250 characters with HTML and quotes are text on every view and tab, and break no layout."""
    dialogs: list[str] = []
    page, watch = open_page("/eaco/")
    page.on("dialog", lambda dialog: dialogs.append(dialog.message))
    with no_problems(watch):
        for name in VIEWS:
            page.evaluate(f"location.hash = '{name}'")
            expect(page.locator("nav a[aria-current=page]")).to_have_text(re.compile(name, re.IGNORECASE))
            shown(page)
            assert page.locator("main img").count() == 0
            require_fits(page, name)
        page.evaluate("location.hash = 'cluster'")
        expect(page.get_by_text(f"{UGLY}.{UGLY}", exact=True).first).to_be_visible()
        page.screenshot(path=SCREENSHOTS / "ugly-names.png")
        root = f"{rig.airflow.api.base_url}/eaco"
        for tab in ("run", "task"):
            task = "&task_id=alexnet&map_index=-1" if tab == "task" else ""
            page.goto(f"{root}/{tab}?dag_id=confirmed&run_id={ugly}{task}")
            article = shown(page).get_by_role("article").filter(has_text=f"family {UGLY}")
            expect(article.locator(".beside").get_by_text(f"{UGLY}.{UGLY}", exact=True)).to_be_visible()
            page.locator("details").evaluate_all("(all) => all.forEach((each) => { each.open = true; })")
            assert page.locator("main img").count() == 0
            require_fits(page, f"tab of a {tab}")
            page.screenshot(path=SCREENSHOTS / f"ugly-{tab}.png", full_page=True)
    assert dialogs == []


@pytest.mark.parametrize("theme", THEMES)
def test_a_task_has_a_tab(
    theme: str, scene: Any, open_page: Callable[..., tuple[Any, Watch]], tmp_path_factory: Any
) -> None:
    """A task's tab tells placement, co-residents, progress and what happened; a run's those of all."""
    run = scene["training"]
    axe = axe_source(tmp_path_factory.getbasetemp())
    page, watch = open_page(
        f"/eaco/task?dag_id=confirmed&run_id={run.run_id}&task_id=alexnet&map_index=-1", theme=theme
    )
    with no_problems(watch):
        story = shown(page).get_by_role("article", name="confirmed.alexnet")
        expect(story.locator(".beside").get_by_text("confirmed.vgg", exact=True)).to_be_visible()
        expect(story.get_by_text("of 100000")).to_be_visible()
        expect(story.get_by_role("img", name="Watts over time")).to_be_visible()
        assert serious(page, axe) == []
        page.screenshot(path=SCREENSHOTS / f"task-{theme}.png", full_page=True)
        happened = story.locator("details", has_text="What happened")
        expect(happened).to_have_attribute("open", "")
        happened.locator("summary").click()
        with page.expect_response("**/task-jobs?*"):
            pass
        expect(happened).not_to_have_attribute("open", "")
    page, watch = open_page(f"/eaco/run?dag_id=confirmed&run_id={run.run_id}", theme=theme)
    with no_problems(watch):
        expect(shown(page).get_by_role("article")).to_have_count(2)
        assert serious(page, axe) == []
        page.screenshot(path=SCREENSHOTS / f"run-{theme}.png", full_page=True)


def test_the_tab_stands_in_airflow(scene: Any, open_page: Callable[..., tuple[Any, Watch]]) -> None:
    """Airflow shows the tab on a task instance, filled with that task."""
    run = scene["training"]
    page, watch = open_page(f"/dags/confirmed/runs/{run.run_id}/tasks/alexnet/plugin/eaco-task")
    with no_problems(watch):
        frame = page.frame_locator("iframe")
        expect(frame.get_by_role("article", name="confirmed.alexnet")).to_be_visible(timeout=TIMEOUT_MS)


def test_the_page_uses_the_keyboard(scene: Any, open_page: Callable[..., tuple[Any, Watch]]) -> None:
    """Every view can be reached with the keyboard alone, and the timeline zoomed with it."""
    page, _ = open_page("/eaco/")
    shown(page)
    page.keyboard.press("Tab")
    expect(page.get_by_text("Skip to the content")).to_be_focused()
    page.keyboard.press("Tab")
    page.keyboard.press("Tab")
    expect(page.get_by_role("link", name="Timeline")).to_be_focused()
    page.keyboard.press("Enter")
    timeline = page.get_by_role("region", name="Timeline of GPUs")
    expect(timeline).to_be_visible()
    timeline.focus()
    page.keyboard.press("+")
    expect(page.get_by_role("button", name="Follow the present")).to_be_visible()


def test_those_who_share_a_gpu_share_its_lane(open_page: Callable[..., tuple[Any, Watch]]) -> None:
    """On the timeline two stays that overlap halve the lane exactly where they do."""
    page, _ = open_page("/eaco/#timeline", user="viewer")
    pieces = page.evaluate(
        """import('/eaco/ui/views/layout.js').then(({ split }) => split([
          { token: 1, from_s: 0, until_s: 10 }, { token: 2, from_s: 5, until_s: null }], 15))"""
    )
    assert [
        (each["span"]["token"], each["from"], each["until"], each["top"], each["height"]) for each in pieces
    ] == [
        (1, 0, 5, 0, 1),
        (1, 5, 10, 0, 0.5),
        (2, 5, 10, 0.5, 0.5),
        (2, 10, 15, 0, 1),
    ]
