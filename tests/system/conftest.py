from pathlib import Path

import pytest

from harness import Airflow

# A start of Airflow counts in its first test's time, on a machine that other tests may keep busy.
AIRFLOW_TIMEOUT_S = 600


def pytest_collection_modifyitems(items):
    """Give tests with a real Airflow more time than the others, unless they name their own."""
    for item in items:
        if item.get_closest_marker("airflow") and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(AIRFLOW_TIMEOUT_S))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    """Show what Airflow said last beside a test that failed with it."""
    report = yield
    if report.failed:
        for name, value in getattr(item, "funcargs", {}).items():
            if isinstance(value, Airflow):
                report.sections.append((f"the Airflow of fixture {name}", value.last_lines()))
    return report


@pytest.fixture(scope="session")
def system_dags() -> Path:
    """The folder of DAG files that the system tests share."""
    return Path(__file__).parent / "dags"
