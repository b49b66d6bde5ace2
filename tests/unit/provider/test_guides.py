"""What the guides tell users to paste into their configuration works."""

from __future__ import annotations

import re
import sys
import textwrap
from configparser import ConfigParser
from dataclasses import replace
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from airflow_provider_eaco.core.cycle import run_cycle
from airflow_provider_eaco.core.model.decision import Reason
from airflow_provider_eaco.core.model.instruction import Launch
from airflow_provider_eaco.core.model.pool import PoolSettings
from airflow_provider_eaco.core.policy.registry import make_ordering, make_policy
from airflow_provider_eaco.provider.options import DEFAULTS
from airflow_provider_eaco.provider.request import parse_executor_config
from airflow_provider_eaco.provider.settings import parse_settings
from tests.builders import (
    hold_gpus,
    make_book,
    make_job,
    make_node,
    make_progress,
    make_resident,
    make_snapshot,
    make_solo,
)

ROOT = Path(__file__).resolve().parents[3]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs" / "guides").glob("*.md"))]
BLOCKS = [
    pytest.param(block, id=f"{page.name}-{number}")
    for page in PAGES
    for number, block in enumerate(re.findall(r"```ini\n(.*?)```", page.read_text(), re.DOTALL))
]


@pytest.mark.parametrize("block", BLOCKS)
def test_every_configuration_shown_is_accepted(block: str) -> None:
    """Each block names options that exist, with values that can be used."""
    config = ConfigParser()
    config.read_string(block)
    if config.has_section("eaco"):
        assert set(config.options("eaco")) <= set(DEFAULTS)
    parse_settings(
        lambda name: config.get("eaco", name, fallback=DEFAULTS[name]),
        home=Path("/airflow"),
        has_driver=True,
        host="here",
    )


def test_operators_find_reasons_by_their_code() -> None:
    """The codes in the troubleshooting table are those that the commands show."""
    page = (ROOT / "docs" / "guides" / "operations.md").read_text()
    table = page.split("## When a task waits")[1]
    codes = {
        code
        for row in re.findall(r"^\| (`.*?`) \|", table, re.MULTILINE)
        for code in re.findall(r"`(.*?)`", row)
    }
    assert codes >= {"pool_unknown", "no_such_gpu", "waiting_for_gpu"}
    assert codes <= {"unknown", *(reason.code for reason in Reason)}


def code_of(page: str, after: str) -> str:
    """Return the first Python of a guide after the given words."""
    text = (ROOT / "docs" / "guides" / page).read_text().split(after, 1)[1]
    found = re.search(r"^( *)```python\n(.*?)^\1```", text, re.DOTALL | re.MULTILINE)
    assert found is not None
    return textwrap.dedent(found[2])


class DockerOperator:
    """As much of the operator as its documentation says and the guide uses."""

    def __init__(self) -> None:
        self.environment: dict[str, str] = {}
        self.device_requests: Any = None
        self.user: str | None = None

    def execute(self, context: Any) -> str:
        """Be the container's run."""
        return f"ran with {context}"


@pytest.mark.parametrize("granted", ["GPU-1,GPU-2", "", None])
def test_containers_get_the_granted_gpus_and_no_other(
    granted: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The guide's operator hands over the UUIDs and what tells whose the processes are; else nothing."""
    operators, types = ModuleType("operators"), ModuleType("types")
    operators.DockerOperator = DockerOperator  # type: ignore[attr-defined]
    types.DeviceRequest = SimpleNamespace  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "airflow.providers.docker", ModuleType("docker"))
    monkeypatch.setitem(sys.modules, "airflow.providers.docker.operators", ModuleType("operators"))
    monkeypatch.setitem(sys.modules, "airflow.providers.docker.operators.docker", operators)
    monkeypatch.setitem(sys.modules, "docker", ModuleType("docker"))
    monkeypatch.setitem(sys.modules, "docker.types", types)
    markers = {"EACO_JOB_ID": "d.t", "EACO_LEASE_TOKEN": "7"}
    for name, value in {"CUDA_VISIBLE_DEVICES": granted, **(markers if granted else {})}.items():
        monkeypatch.delenv(name, raising=False)
        if value is not None:
            monkeypatch.setenv(name, value)
    names: dict[str, Any] = {}
    exec(code_of("authors.md", "### Containers"), names)
    operator = names["GrantedDockerOperator"]()
    assert operator.execute("c") == "ran with c"
    wanted = [SimpleNamespace(device_ids=["GPU-1", "GPU-2"], capabilities=[["gpu"]])] if granted else None
    assert (operator.device_requests, operator.environment) == (wanted, markers if granted else {})
    assert (operator.user is not None) is bool(granted)


@pytest.mark.parametrize("machines", [1, 2])
def test_the_first_trainings_of_many_machines_share_once_they_have_run_alone(
    machines: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On machines with two GPUs, whatever a GPU draws; before that neither joins the other."""
    monkeypatch.setenv("AIRFLOW__CORE__EXECUTOR", "airflow_provider_eaco.EacoExecutor")
    names: dict[str, Any] = {}
    exec(code_of("many-machines.md", "Run two trainings"), names)
    dag = names["two_trainings"]()
    assert dag.is_paused_upon_creation is False
    jobs = []
    for name in ("small", "large"):
        config = dag.get_task(name).executor_config
        request = parse_executor_config(config, default_family=f"d.{name}", default_max_stretch=None)
        assert request is not None
        jobs.append(replace(make_job(name, gpus=2), request=request))
    families = [job.request.family for job in jobs]
    alone = make_book(
        *(
            make_solo(each, "V100", 2, power_w=60.0, utilisation_pct=40.0, checkpoints=True)
            for each in families
        )
    )
    for book, joins in ((make_book(), False), (alone, True)):
        first = hold_gpus(
            make_node("n1", gpus=2), make_resident(replace(jobs[0], progress=make_progress(1, 20)))
        )
        others = [make_node("n2", gpus=2)] if machines == 2 else []
        snapshot = make_snapshot(first, *others, waiting=[jobs[1]], settings=PoolSettings(), profiles=book)
        plan = run_cycle(make_policy(PoolSettings()), make_ordering("fifo"), snapshot, ())
        joined = [each.co_residents for each in plan.instructions if isinstance(each, Launch)]
        assert (("small",) in joined) is joins
