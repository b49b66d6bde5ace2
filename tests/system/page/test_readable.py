"""What stands on the page can be told apart and reads the same everywhere, however much there is of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from airflow_provider_eaco.provider.shown import shown_energy
from tests.system.page.browser import SCREENSHOTS, TIMEOUT_MS, Watch, no_problems

pytestmark = [pytest.mark.airflow]
playwright_api = pytest.importorskip("playwright.sync_api", reason="Playwright is in the group test")
expect = playwright_api.expect

NODES = 64
NAME = "training-cluster-frankfurt-node-{:04d}"


@pytest.mark.parametrize("partial", [False, True])
def test_energy_reads_as_in_every_sentence(
    partial: bool, open_page: Callable[..., tuple[Any, Watch]]
) -> None:
    """The page's amounts of energy are those of the command line and the log, to the letter."""
    page, _ = open_page("/eaco/", user="viewer")
    joules = [None, -1.0, 0.0, 0.2, 1234.4, 360_001.0, 3_300_473.0, 3_599_999.0, 3.6e6, 7.2e6, 1.234e9]
    shown = page.evaluate(
        """([all, partial]) => import('/eaco/ui/format.js').then(
          ({ energy }) => all.map((each) => energy(each, partial)))""",
        [joules, partial],
    )
    assert shown == [shown_energy(each, partial=partial) for each in joules]


def test_names_of_many_silent_nodes_keep_their_ends(open_page: Callable[..., tuple[Any, Watch]]) -> None:
    """Of 64 unavailable nodes with long names each card shows the end of its name, uncut."""
    page, watch = open_page("/", user="viewer")

    def told(route: Any) -> None:
        body = route.fetch().json()
        model = body["nodes"][0]
        nodes = [
            {**model, "name": NAME.format(number), "state": "unavailable", "power_w": None}
            for number in range(NODES)
        ]
        route.fulfill(json=body | {"nodes": nodes})

    page.route("**/api/v1/overview", told)
    with no_problems(watch):
        page.goto(page.url.rstrip("/") + "/eaco/")
        names = page.locator(".node h2")
        expect(names).to_have_count(NODES, timeout=TIMEOUT_MS)
        page.screenshot(path=SCREENSHOTS / "many-silent.png")
        seen = names.evaluate_all(
            """(all) => all.map((name) => {
              const last = name.lastElementChild;
              const [own, end] = [name, last].map((each) => each.getBoundingClientRect());
              const isInside = end.left >= own.left - 0.5 && end.right <= own.right + 0.5;
              const isWhole = isInside && last.scrollWidth <= last.clientWidth;
              return [name.textContent, isWhole ? last.textContent : 'cut'];
            })"""
        )
    assert [whole for whole, _ in seen] == [NAME.format(number) for number in range(NODES)]
    assert [end for _, end in seen] == [NAME.format(number)[-8:] for number in range(NODES)]
    page.unroute_all()


def test_the_axis_stays_in_sight_above_many_gpus(open_page: Callable[..., tuple[Any, Watch]]) -> None:
    """Far down a timeline of 512 GPUs the instants still stand at the top, and names end as they end."""
    page, watch = open_page("/", user="viewer")

    def told(route: Any) -> None:
        body = route.fetch().json()
        model = body["lanes"][0]
        lanes = [
            {**model, "node": NAME.format(number // 8), "index": number % 8, "uuid": f"GPU-{number}"}
            for number in range(NODES * 8)
        ]
        route.fulfill(json=body | {"lanes": lanes, "spans": []})

    page.route("**/api/v1/timeline?*", told)
    with no_problems(watch):
        page.goto(page.url.rstrip("/") + "/eaco/#timeline")
        label = page.locator("svg.axis text").first
        expect(label).to_be_visible(timeout=TIMEOUT_MS)
        page.evaluate("scrollTo(0, 3000)")
        assert page.evaluate("scrollY") > 2000
        box = label.bounding_box()
        assert 0 <= box["y"] < 40
        page.screenshot(path=SCREENSHOTS / "axis.png")
        names = page.locator(".timeline .node-name").evaluate_all(
            "(all) => all.map((each) => each.firstChild.data)"
        )
    assert names == [f"traini…ode-{number:04d}" for number in range(NODES)]
    page.unroute_all()


def test_where_nothing_has_happened_it_says_so(open_page: Callable[..., tuple[Any, Watch]]) -> None:
    """A story without events has a sentence in their place, one with events has not."""
    page, _ = open_page("/eaco/", user="viewer")
    told = page.evaluate(
        """Promise.all([import('/eaco/ui/dom.js'), import('/eaco/ui/views/story.js')]).then(
          ([{ patch }, { events }]) => [[], [{ at_s: 0, event: 'eaco hold', text: 'free' }]].map((each) => {
            const place = document.createElement('div');
            patch(place, events({ events: each }));
            return place.textContent;
          }))"""
    )
    assert told[0] == "Nothing has happened yet."
    assert "free" in told[1]
    assert "Nothing" not in told[1]
