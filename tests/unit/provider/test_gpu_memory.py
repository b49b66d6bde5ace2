"""GPUs that do not tell how much memory they have: what they take, and how their size is set (C47)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from airflow_provider_eaco.core.model.errors import InvalidSettingError
from airflow_provider_eaco.core.model.gpu import Node
from airflow_provider_eaco.core.model.instruction import Plan
from airflow_provider_eaco.core.model.job import Job
from airflow_provider_eaco.core.model.pool import PoolSettings
from airflow_provider_eaco.core.model.profile import ProfileBook
from airflow_provider_eaco.core.model.snapshot import NodeState
from airflow_provider_eaco.provider.options import DEFAULTS, EXAMPLES
from airflow_provider_eaco.provider.settings import EacoSettings, parse_settings
from airflow_provider_eaco.provider.wiring import real_meter
from airflow_provider_eaco.simulator.memory_profiles import MemoryProfileStore
from tests.builders import (
    hold_gpus,
    make_book,
    make_job,
    make_pair,
    make_resident,
    make_snapshot,
    make_solo,
)
from tests.contract.parts import ManualClock
from tests.nvml.machine import FakeMachine, fake_machine
from tests.nvml.rig import DirectSource, ListedProcesses, uuid_of
from tests.unit.core.conftest import run_checked
from tests.unit.core.plans import codes_of, launched, texts_of

MARGIN_MIB = PoolSettings().memory_margin_mib
#: What the fake card's driver keeps for itself, as it tells it with the size.
RESERVED_MIB = 300


def settings_of(gpu_memory: str, home: Path = Path("/none")) -> EacoSettings:
    """The settings of a machine on which nothing but this was set."""
    texts = {**DEFAULTS, "gpu_memory": gpu_memory}
    return parse_settings(texts.__getitem__, home=home, has_driver=True, host="box")


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeMachine:
    """Two V100, of which the first does not tell its memory."""
    made = fake_machine(tmp_path, monkeypatch)
    made.set(0, total=None)
    return made


def node_of(gpu_memory: str) -> Node:
    """The machine as the executor's own meter lists it, with this option."""
    source = DirectSource(ManualClock())
    meter = real_meter(
        settings_of(gpu_memory), MemoryProfileStore(ProfileBook()), source=source, processes=ListedProcesses()
    )
    (node,) = meter.telemetry.inventory()
    return node


def decide(node: Node, job: Job, *residents: Any) -> Plan:
    """Let the job wait where only the first GPU is there, held by the residents, if any."""
    first = node.gpus[:1]
    free = NodeState(Node(node.name, first), free=first)
    state = hold_gpus(free, *residents) if residents else free
    solos = (make_solo("A", first[0].model), make_solo("B", first[0].model))
    book = make_book(*solos, make_pair({"A": 1.0, "B": 1.0}, first[0].model))
    settings = PoolSettings(reject_after_s=0)
    return run_checked(make_snapshot(state, waiting=[job], profiles=book, settings=settings))


def test_c47_a_gpu_of_unknown_size_is_listed_and_takes_nobody_by_memory(machine: FakeMachine) -> None:
    """It runs a task alone that asks for no memory; one that asks, however little, and one that would share,
    are told that the size is unknown, and the first what names it.
    """
    node = node_of("")
    assert [gpu.memory_total_mib for gpu in node.gpus] == [None, 16 * 1024]
    assert "j" in launched(decide(node, make_job("j", "B", 1, gpu_memory_mib=None)))
    asks = decide(node, make_job("j", "B", 1, gpu_memory_mib=1))
    assert codes_of(asks, "j") == ["no_such_gpu"]
    assert "the largest usable is 1 x V100 with unknown each" in texts_of(asks, "j")
    assert "of unknown size does not count before [eaco] gpu_memory names it" in texts_of(asks, "j")
    shares = decide(
        node,
        make_job("j", "B", 1, gpu_memory_mib=None),
        make_resident(make_job("a", "A", 1, max_stretch=None)),
    )
    assert codes_of(shares, "j")[0] == "memory_would_overflow"
    assert "the best candidate has unknown of unknown" in texts_of(shares, "j")


@pytest.mark.parametrize("named", ["model", "UUID"])
def test_c47_the_size_that_an_admin_names_counts_at_admission(named: str, machine: FakeMachine) -> None:
    """With it the GPU takes what fits beside the margin, to the MiB, and the reason has the numbers."""
    name = "V100" if named == "model" else uuid_of(machine, 0)
    node = node_of(f'{{"{name}": "96GiB"}}')
    most_mib = 96 * 1024 - MARGIN_MIB
    assert "j" in launched(decide(node, make_job("j", "B", 1, gpu_memory_mib=most_mib)))
    plan = decide(node, make_job("j", "B", 1, gpu_memory_mib=most_mib + 1))
    assert f"the largest usable is 1 x V100 with {most_mib} MiB each" in texts_of(plan, "j")
    assert "gpu_memory" not in texts_of(plan, "j")
    resident = make_resident(make_job("a", "A", 1, max_stretch=None))
    assert "j" in launched(decide(node, make_job("j", "B", 1, max_stretch=None), resident))


def test_c47_what_a_gpu_tells_goes_before_what_an_admin_names(machine: FakeMachine) -> None:
    """A size is taken only where the GPU tells none, and one of a UUID goes before that of its model."""
    node = node_of(f'{{"V100": "96GiB", "{uuid_of(machine, 0)}": 4096, "T4": "1GiB"}}')
    assert [gpu.memory_total_mib for gpu in node.gpus] == [4096, 16 * 1024]
    assert [gpu.memory_reserved_mib for gpu in node.gpus] == [0, RESERVED_MIB]
    assert [gpu.memory_total_mib for gpu in node_of('{"T4": "1GiB"}').gpus] == [None, 16 * 1024]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("{", EXAMPLES["gpu_memory"]),
        ("16GiB", EXAMPLES["gpu_memory"]),
        ('["V100"]', EXAMPLES["gpu_memory"]),
        ('{"": "16GiB"}', EXAMPLES["gpu_memory"]),
        ('{"V100": "16Gi"}', "V100"),
        ('{"V100": 0}', "V100"),
        ('{"V100": null}', "V100"),
        ('{"V100": 1.5}', "V100"),
    ],
)
def test_c47_a_size_that_cannot_be_used_is_refused_by_name(text: str, told: str) -> None:
    """The error names the option, and what of it is wrong."""
    with pytest.raises(InvalidSettingError) as caught:
        settings_of(text)
    assert caught.value.setting == "[eaco] gpu_memory"
    assert told in caught.value.problem
