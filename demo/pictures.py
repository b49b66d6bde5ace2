"""Take the pictures of the getting-started page from a real Airflow that does what the page says.

The DAG is the one that stands on the page, so the pictures and the page cannot drift apart. Needs Chromium.
"""

from __future__ import annotations

import re
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from playwright.sync_api import FrameLocator, Page, sync_playwright

from harness import Airflow, AirflowSettings

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "getting-started.md"
PICTURES = ROOT / "docs" / "pictures"
DAG_ID = "my_trainings"
SIZE = (1200, 600)
# Both runs of the page take three minutes on a free machine.
DEADLINE_S = 600.0
_CONFIRMED = "SELECT job_id FROM eaco_lease WHERE released_at IS NULL AND state = 'confirmed'"


def main() -> int:
    """Follow the page and write its pictures; the exit code is 0 only if all were taken."""
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    if chromium is None:
        sys.stderr.write("no Chromium is installed: apt-get install chromium\n")
        return 2
    PICTURES.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder, _airflow(Path(folder)) as airflow, _page(chromium) as page:
        page.goto(airflow.api.base_url)
        page.get_by_role("link", name="GPUs").click()
        _follow(airflow, page)
    return 0


def dag_source() -> str:
    """Return the DAG file that the page shows."""
    [source] = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    return str(source)


def _follow(airflow: Airflow, page: Page) -> None:
    frame = page.frame_locator("iframe")
    first = airflow.trigger(DAG_ID)
    _open(frame, "Queue")
    frame.get_by_text("profile_missing").first.wait_for()
    _take(page, "queue")
    airflow.wait_run(DAG_ID, first, deadline_s=DEADLINE_S)
    second = airflow.trigger(DAG_ID)
    airflow.wait_for(lambda: len(airflow.query(_CONFIRMED)) == 2, "a confirmed co-allocation", DEADLINE_S)
    _open(frame, "Cluster")
    # By then the timeline has something to show of it, too.
    frame.get_by_text(re.compile(r"^[34]\d of 60")).first.wait_for()
    _take(page, "cluster")
    _open(frame, "Timeline")
    frame.get_by_label("Show the last").select_option(label="15 min")
    frame.get_by_role("region", name="Timeline of GPUs").wait_for()
    _take(page, "timeline")
    airflow.wait_run(DAG_ID, second, deadline_s=DEADLINE_S)
    page.goto(f"{airflow.api.base_url}/dags/{DAG_ID}/runs/{second}/tasks/large/plugin/eaco-task")
    frame.get_by_role("article").first.wait_for()
    _take(page, "task")


def _open(frame: FrameLocator, view: str) -> None:
    """Open a view of the page and return when its head says that the GPUs are in use."""
    frame.get_by_role("link", name=view, exact=True).click()
    frame.get_by_text("8 of 8").first.wait_for()


def _take(page: Page, name: str) -> None:
    page.screenshot(path=PICTURES / f"{name}.png")


@contextmanager
def _airflow(folder: Path) -> Iterator[Airflow]:
    dags = folder / "dags"
    dags.mkdir()
    (dags / f"{DAG_ID}.py").write_text(dag_source())
    settings = AirflowSettings(folder / "home", dags, executor="airflow_provider_eaco.EacoExecutor")
    with Airflow(settings) as airflow:
        yield airflow


@contextmanager
def _page(chromium: str) -> Iterator[Page]:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        context = browser.new_context(
            viewport={"width": SIZE[0], "height": SIZE[1]}, color_scheme="light", reduced_motion="reduce"
        )
        context.add_init_script("localStorage.setItem('theme', 'light')")
        context.set_default_timeout(DEADLINE_S * 1000)
        yield context.new_page()
        browser.close()


if __name__ == "__main__":
    sys.exit(main())
