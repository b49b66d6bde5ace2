"""Which GPUs a machine offers: real ones, simulated ones, or what is found."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_eaco.core.model.errors import InvalidSettingError
from airflow_provider_eaco.core.model.profile import ProfileBook
from airflow_provider_eaco.provider.node_settings import GpuSource, NodePowerSettings
from airflow_provider_eaco.provider.options import DEFAULTS
from airflow_provider_eaco.provider.settings import EacoSettings, parse_settings
from airflow_provider_eaco.provider.wiring import make_meters
from airflow_provider_eaco.simulator.memory_profiles import MemoryProfileStore
from airflow_provider_eaco.telemetry import nvml_probe
from airflow_provider_eaco.telemetry.node_power_source import HttpNodePower
from airflow_provider_eaco.telemetry.nvml import NvmlTelemetry
from tests.nvml.machine import fake_machine

LISTED = json.dumps([{"name": "sim-1", "gpus": 1}])


def parse(folder: Path, *, has_driver: bool = False, **texts: str) -> EacoSettings:
    values = {**DEFAULTS, "simulated_state": str(folder / "state.json"), **texts}
    return parse_settings(values.__getitem__, home=folder, has_driver=has_driver, host="gpu box")


@pytest.mark.parametrize(
    ("texts", "machine", "kinds"),
    [
        ({}, "plain", ["simulated"]),
        ({}, "library without a GPU", ["simulated"]),
        ({}, "GPUs", ["real"]),
        # Cards that cannot be told now must not be taken for simulated ones.
        ({}, "driver", ["real"]),
        ({}, "driver without library", []),
        ({"simulated_nodes": LISTED}, "GPUs", ["simulated"]),
        ({"simulated_nodes": "none"}, "GPUs", ["real"]),
        ({"simulated_nodes": "none"}, "plain", []),
        ({"telemetry": "simulated"}, "driver", ["simulated"]),
        ({"telemetry": "nvml"}, "plain", ["real"]),
        ({"telemetry": " NVML ", "simulated_nodes": LISTED}, "GPUs", ["real", "simulated"]),
    ],
)
def test_the_machine_s_gpus_are_what_is_configured_or_found(
    texts: dict[str, str], machine: str, kinds: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``auto`` takes real GPUs where there are some, unless simulated nodes are listed; the other two are
    taken at their word.
    """
    with_library = {"library without a GPU", "GPUs", "driver"}
    monkeypatch.setattr(nvml_probe, "has_library", lambda: machine in with_library)
    monkeypatch.setattr(nvml_probe, "lists_a_gpu", lambda: machine == "GPUs")
    monkeypatch.setattr("airflow_provider_eaco.provider.wiring.SamplingProcess", SilentSource)
    settings = parse(tmp_path, has_driver=machine.startswith("driver"), **texts)
    meters = make_meters(settings, MemoryProfileStore(ProfileBook()))
    real = [isinstance(meter.telemetry, NvmlTelemetry) for meter in meters]
    assert ["real" if is_real else "simulated" for is_real in real] == kinds


class SilentSource:
    """A sampler that never says anything."""

    def start(self, deliver: Any) -> None:
        pass

    def close(self) -> None:
        pass


def test_an_unknown_source_is_refused(tmp_path: Path) -> None:
    """The error names the option, the value and what is allowed."""
    with pytest.raises(
        InvalidSettingError, match=r"\[eaco\] telemetry: 'dcgm' must be one of auto, nvml, sim"
    ):
        parse(tmp_path, telemetry="dcgm")
    assert parse(tmp_path).telemetry is GpuSource.AUTO


def test_real_gpus_are_metered_by_a_process_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What wiring makes for a machine with GPUs lists them, under the machine's name, and stops when told."""
    fake_machine(tmp_path, monkeypatch)
    (meter,) = make_meters(parse(tmp_path, telemetry="nvml"), MemoryProfileStore(ProfileBook()))
    assert isinstance(meter.telemetry, NvmlTelemetry)
    meter.telemetry._first_wait_s = 30.0
    (node,) = meter.telemetry.inventory()
    assert (node.name, [gpu.model for gpu in node.gpus]) == ("gpu-box", ["V100", "V100"])
    assert meter.live is not None
    meter.live.close()


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("[]", "must be a JSON object of texts"),
        ('{"kind": "ipmi", "url": "http://b"}', "kind is 'ipmi', must be redfish or prometheus"),
        ('{"kind": "redfish", "url": "ftp://b"}', "must begin with http"),
        ('{"kind": "redfish"}', "must begin with http"),
        ('{"kind": "prometheus", "url": "http://b"}', "query is needed for prometheus"),
        ('{"kind": "redfish", "url": "http://b", "query": "x"}', "and for nothing else"),
        ('{"kind": "redfish", "url": "http://b", "user": "root"}', "unknown user; allowed are"),
    ],
)
def test_a_power_meter_that_cannot_be_used_is_refused(text: str, problem: str, tmp_path: Path) -> None:
    """The error names the option and what is allowed."""
    with pytest.raises(InvalidSettingError, match=rf"\[eaco\] node_power.*{problem}"):
        parse(tmp_path, node_power=text)


def test_the_power_of_the_machine_is_read_where_it_is_configured(tmp_path: Path) -> None:
    """Without the option nothing is asked."""
    assert parse(tmp_path).node_power is None
    told = parse(tmp_path, node_power='{"kind": "prometheus", "url": "http://p:9090", "query": "power"}')
    assert told.node_power == NodePowerSettings("prometheus", "http://p:9090", "power")


@pytest.mark.parametrize(("text", "factor"), [("", None), (" 350 ", 350.0)])
def test_c56_there_is_no_co2_factor_unless_one_is_configured(
    text: str, factor: float | None, tmp_path: Path
) -> None:
    """The default knows none; a number is the site's own."""
    assert parse(tmp_path, carbon_g_per_kwh=text).carbon_g_per_kwh == factor
    with pytest.raises(InvalidSettingError, match=r"carbon_g_per_kwh: 'DE' must be a number above 0"):
        parse(tmp_path, carbon_g_per_kwh="DE")


def test_real_gpus_are_held_against_the_machine_s_meter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The configured source is asked from the start, and no more once the meter is closed."""
    monkeypatch.setattr("airflow_provider_eaco.provider.wiring.SamplingProcess", SilentSource)
    source = '{"kind": "redfish", "url": "http://127.0.0.1:9/redfish/v1/Chassis/1/Power"}'
    settings = parse(tmp_path, telemetry="nvml", node_power=source)
    (meter,) = make_meters(settings, MemoryProfileStore(ProfileBook()))
    assert isinstance(meter.telemetry, NvmlTelemetry)
    power = meter.telemetry._node_power
    assert isinstance(power, HttpNodePower)
    meter.telemetry.close()
    power._thread.join(30)
    assert not power._thread.is_alive()
    assert power.look() is None
