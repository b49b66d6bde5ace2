"""What Airflow is told about the provider: complete, true, and without importing Airflow."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import distribution
from pathlib import Path
from pkgutil import resolve_name

import pytest
from airflow.configuration import conf
from airflow.providers_manager import ProvidersManager

from airflow_provider_eaco.provider.options import OPTIONS, SECTION
from airflow_provider_eaco.provider.rules import read_rules
from airflow_provider_eaco.provider.settings import parse_settings
from airflow_provider_eaco.provider_info import get_provider_info


def test_the_package_name_is_the_distribution_s() -> None:
    """Airflow refuses a provider whose name differs from its distribution."""
    assert get_provider_info()["package-name"] == distribution("airflow-provider-eaco").name


def test_every_option_is_described_for_airflow() -> None:
    """Each option has what Airflow's configuration needs, under its own name."""
    options = get_provider_info()["config"][SECTION]["options"]
    assert list(options) == [option.name for option in OPTIONS]
    for described in options.values():
        assert described.keys() == {"description", "version_added", "type", "example", "default"}
        assert described["description"]
        assert described["type"] in {"string", "integer", "float", "boolean"}


def test_airflow_gives_the_defaults() -> None:
    """With the provider installed, Airflow's configuration answers with our defaults."""
    for option in OPTIONS:
        assert conf.get(SECTION, option.name) == option.default


def test_settings_read_exactly_the_options_that_exist(tmp_path: Path) -> None:
    """No option is described that nobody reads, and none is read that is not described."""
    read: list[str] = []

    def read_default(name: str) -> str:
        read.append(name)
        return next(option.default for option in OPTIONS if option.name == name)

    parse_settings(read_default, home=tmp_path, has_driver=False, host="here")
    # These are read where DAGs are parsed, and a slip in them is no reason to hold GPU tasks.
    read.append("rules")
    assert sorted(set(read)) == sorted(option.name for option in OPTIONS)


def test_every_example_can_be_used(tmp_path: Path) -> None:
    """The examples in the documentation are values that the settings accept."""
    examples = {
        option.name: option.default if option.example is None else option.example for option in OPTIONS
    }
    parse_settings(examples.__getitem__, home=tmp_path, has_driver=False, host="here")
    rules, problems = read_rules(examples["rules"])
    assert rules
    assert problems == ()


def named_objects() -> list[str]:
    """Return every dotted path that the provider info sends Airflow to."""
    info = get_provider_info()
    decorators = [each["class-name"] for each in info["task-decorators"]]
    return [*info["executors"], *decorators, *info["cli"], *info["db-managers"]]


@pytest.mark.parametrize("path", named_objects())
def test_everything_named_exists(path: str) -> None:
    """Whatever Airflow is sent to can be imported."""
    assert callable(resolve_name(path))


def test_airflow_finds_the_provider() -> None:
    """The providers manager lists the installed distribution."""
    assert "airflow-provider-eaco" in ProvidersManager().providers


@pytest.mark.parametrize(
    "code",
    [
        "import airflow_provider_eaco",
        "from airflow_provider_eaco.provider_info import get_provider_info; get_provider_info()",
        "from airflow_provider_eaco import gpu_request; gpu_request(gpus=1)",
        "import airflow_provider_eaco as e\nwith e.training_run(epochs=1) as run: list(run.epochs())",
    ],
    ids=["package", "provider_info", "gpu_request", "training_run"],
)
def test_nothing_imports_airflow_before_it_is_needed(code: str) -> None:
    """Package, provider info, request and training loop work where Airflow is not even loaded."""
    check = f"import sys\n{code}\nassert not [m for m in sys.modules if m.split('.')[0] == 'airflow']"
    done = subprocess.run(
        [sys.executable, "-c", check], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
