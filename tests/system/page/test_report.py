"""The report on the page: the API's numbers by month, the files of the command, and unknown as unknown."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_eaco.provider.energy_report import Line, MonthSums, Report
from airflow_provider_eaco.provider.report_forms import as_html
from tests.system.page.browser import SCREENSHOTS, TIMEOUT_MS, Watch, no_problems
from tests.system.page.conftest import Client
from tests.system.rig import Rig

pytestmark = [pytest.mark.airflow]
playwright_api = pytest.importorskip("playwright.sync_api", reason="Playwright is in the group test")
expect = playwright_api.expect

UNKNOWN_MONTH: dict[str, Any] = {
    "month": "2025-01",
    "finished_j": 7.2e6,
    "failed_j": 3.6e6,
    "open_j": 0.0,
    "idle_j": None,
    "strangers_j": None,
    "unmatched_j": None,
    "excess_j": None,
    "devices_j": None,
    "unknown_s": 0.0,
    "node_j": None,
    "node_gpus_j": None,
    "cost": 1.5,
    "co2e_g": None,
}
LOST: dict[str, Any] = {
    "month": "2025-01",
    "group": "team",
    "name": "<b>vision</b>",
    "tries": 3,
    "energy_j": 7.2e6,
    "partial": True,
    "failed_j": 3.6e6,
    "gpu_h": 12.34,
    "wait_s": 90.0,
    "stretch": None,
    "saved_j": -1.8e6,
    "compared": 2,
    "cost": 1.0,
    "co2e_g": None,
}
NOBODY = {
    **LOST,
    "name": "nobody",
    "tries": 1,
    "energy_j": None,
    "wait_s": None,
    "saved_j": None,
    "compared": 0,
    "cost": None,
}
MONTH_SHOWN = [
    "2025-01|unknown|2.000 kWh|1.000 kWh|0.000 kWh|unknown|unknown|unknown|1.50 EUR|unknown",
]
LINES_SHOWN = [
    (
        "2025-01|<b>vision</b> 3 tries|at least 2.000 kWh|1.000 kWh|12.3|1 min 30 s|unknown|"
        "lost 0.500 kWh 2 of 3 compared|1.00 EUR|unknown"
    ),
    "2025-01|nobody 1 try|unknown|1.000 kWh|12.3|unknown|unknown|unknown 0 of 1 compared|unknown|unknown",
]


def cells(rows: Any) -> list[str]:
    """Return the cells of every row of a table's body, with a bar between them."""
    read = "(all) => all.map((row) => [...row.cells].map((cell) => cell.innerText).join('|'))"
    return [" ".join(text.split()) for text in rows.evaluate_all(read)]


def test_the_report_shows_the_apis_numbers_and_gives_its_files(
    rig: Rig, clients: dict[str, Client], open_page: Callable[..., tuple[Any, Watch]]
) -> None:
    """What a task has used stands in the section by DAG, and the CSV behind the link is that month's."""
    run = rig.run("told_two")
    run.wait_started()

    def told() -> Any:
        body = clients["viewer"].get("/api/v1/report").json()
        return any(line["name"] == "told_two" for line in body["lines"]) and body

    rig.wait_for(told, "energy of the task in the report")
    run.end()
    run.wait_done()
    month = told()["month"]
    page, watch = open_page("/eaco/#energy", user="viewer")
    report = page.get_by_role("region", name="Report", exact=True)
    with no_problems(watch):
        expect(report.get_by_role("region", name="All GPUs by month").locator("tbody tr")).to_have_count(1)
        report.get_by_role("combobox", name="Report by").select_option("dag")
        row = report.get_by_role("region", name="Report by DAG").locator("tr", has_text="told_two")
        expect(row).to_contain_text(month)
        expect(row).to_contain_text("kWh")
        with page.expect_download() as loading:
            report.get_by_role("link", name="Report as CSV").click()
        assert loading.value.suggested_filename == f"energy-{month}.csv"
        rows = list(csv.DictReader(io.StringIO(Path(loading.value.path()).read_text())))
        assert {"told_two", month} <= {each["name"] for each in rows}
        with page.expect_download() as loading:
            report.get_by_role("link", name="Report as HTML").click()
        assert loading.value.suggested_filename == f"energy-{month}.html"
        report.get_by_label("Month (UTC)").select_option("all")
        expect(report.get_by_role("link", name="Report as CSV")).to_have_attribute(
            "href", "api/v1/report/export?format=csv&month=all"
        )
        expect(row).to_contain_text(month)
        page.screenshot(path=SCREENSHOTS / "report.png", full_page=True)


def test_unknown_is_unknown_and_loss_is_named(rig: Rig, open_page: Callable[..., tuple[Any, Watch]]) -> None:
    """What nobody knows reads unknown, what was lost reads so, and a name is text."""
    page, watch = open_page("/", user="viewer")
    asked: list[str] = []

    def told(route: Any) -> None:
        asked.append(route.request.url.rpartition("/")[2])
        month = route.request.url.rpartition("=")[2]
        body = route.fetch().json()
        body |= {"price_per_kwh": 0.5, "currency": "EUR", "carbon_g_per_kwh": 100.0}
        body |= {"months": [UNKNOWN_MONTH], "lines": [LOST, NOBODY]} if month == "all" else {"months": []}
        route.fulfill(json=body)

    page.route("**/api/v1/report?*", told)
    with no_problems(watch):
        page.goto(page.url.rstrip("/") + "/eaco/#energy")
        report = page.get_by_role("region", name="Report", exact=True)
        expect(report).to_contain_text("No energy is recorded for", timeout=TIMEOUT_MS)
        assert len(asked) == 1
        report.get_by_label("Month (UTC)").select_option("all")
        of_all = report.get_by_role("region", name="All GPUs by month").locator("tbody tr")
        expect(of_all).to_have_count(1)
        assert cells(of_all) == MONTH_SHOWN
        lines = report.get_by_role("region", name="Report by Team").locator("tbody tr")
        assert cells(lines) == LINES_SHOWN
        assert asked[1:] == ["report?month=all"]
    page.unroute_all()


@pytest.mark.parametrize("width", [1440, 390])
def test_the_file_breaks_long_names(width: int, chromium: Any, tmp_path: Path) -> None:
    """With a name of 250 letters the HTML file is as wide as the window, and no amount is broken."""
    lines = (Line(**{**LOST, "name": "x" * 250}), Line(**{**LOST, "group": "dag", "name": "d"}))
    made = Report((MonthSums(**UNKNOWN_MONTH),), lines, 0.5, "EUR", 100.0)
    file = tmp_path / "report.html"
    file.write_text(as_html(made))
    page = chromium.new_page(viewport={"width": width, "height": 900})
    page.goto(file.as_uri())
    assert page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0
    frame = page.locator("div", has_text="x" * 250)
    # In a narrow window a table scrolls in its frame, and is no wider for the name.
    assert frame.evaluate("(each) => each.scrollWidth") <= 1440
    month = page.get_by_role("cell", name="2.000 kWh", exact=True).first
    assert month.bounding_box()["height"] < 40
    page.screenshot(path=SCREENSHOTS / f"report-file-{width}.png", full_page=True)
    page.close()
