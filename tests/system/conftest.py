from collections.abc import Iterator
from pathlib import Path

import pytest

from harness import Airflow, AirflowSettings


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


@pytest.fixture(scope="module")
def stock_airflow(tmp_path_factory, system_dags) -> Iterator[Airflow]:
    """An Airflow with its stock LocalExecutor and SQLite, shared by the tests of a module."""
    settings = AirflowSettings(tmp_path_factory.mktemp("stock"), system_dags)
    with Airflow(settings) as airflow:
        yield airflow
