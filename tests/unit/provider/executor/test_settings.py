"""The [eaco] section as frozen values."""

import math
from dataclasses import fields
from pathlib import Path

import pytest

from airflow_provider_eaco.core.model.errors import InvalidSettingError
from airflow_provider_eaco.core.model.pool import PoolMode, PoolSettings
from airflow_provider_eaco.provider.options import DEFAULTS, OPTIONS
from airflow_provider_eaco.provider.settings import _POOL_CHECKS, SimulatedNodeSettings, parse_settings

HOME = Path("/airflow")


def parse(has_driver=False, **texts):
    return parse_settings(lambda name: texts.get(name, DEFAULTS[name]), home=HOME, has_driver=has_driver)


def test_the_defaults_are_one_sharing_pool_on_one_simulated_node():
    """Without any configuration a machine without a GPU has a node to try everything on."""
    settings = parse()
    assert settings.pools == (PoolSettings(),)
    assert settings.simulated_nodes == (SimulatedNodeSettings("sim-1"),)
    assert settings.simulated_state == HOME / "eaco" / "simulated.json"
    assert settings.default_max_stretch == pytest.approx(1.10)


def test_a_machine_with_a_driver_simulates_nothing_by_itself():
    """``auto`` never mixes simulated GPUs with real ones."""
    assert parse(has_driver=True).simulated_nodes == ()


@pytest.mark.parametrize("option", OPTIONS, ids=lambda option: option.name)
def test_every_example_is_accepted(option):
    """The example that the documentation shows for an option can be pasted."""
    parse(**{option.name: option.example})


def test_every_pool_setting_can_be_configured():
    """No field of a pool is out of a user's reach."""
    assert set(_POOL_CHECKS) == {item.name for item in fields(PoolSettings)} - {"name"}


def test_a_pool_is_read_whole():
    """A pool takes what is written, and the defaults for the rest; the section gives its trial limit."""
    text = '{"a": {"mode": "exclusive", "nodes": ["gpu-*"], "max_residents": 2}, "b": {"trial_limit_s": 5}}'
    first, second = parse(pools=text, trial_limit="60").pools
    assert (first.name, first.mode, first.nodes, first.max_residents) == (
        "a",
        PoolMode.EXCLUSIVE,
        ("gpu-*",),
        2,
    )
    assert (first.trial_limit_s, second.trial_limit_s) == (60.0, 5.0)


def test_a_job_of_another_airflow_pool_goes_to_the_first_gpu_pool():
    """A rule can send an untouched DAG here without moving it to another Airflow pool."""
    settings = parse(pools='{"a": {}, "b": {}}')
    assert [settings.pool_for(name).name for name in ("a", "b", "default_pool")] == ["a", "b", "a"]


@pytest.mark.parametrize(
    ("texts", "setting", "problem"),
    [
        ({"pools": "{"}, "[eaco] pools", "not JSON"),
        ({"pools": "{}"}, "[eaco] pools", "at least one entry"),
        ({"pools": '{"a": {"mode": "shared"}}'}, "[eaco] pools, a, mode", "off, observe, exclusive, share"),
        ({"pools": '{"a": {"modes": 1}}'}, "[eaco] pools, a", "unknown modes"),
        ({"pools": '{"a": {"max_residents": 0}}'}, "[eaco] pools, a, max_residents", "at least 1"),
        ({"pools": '{"a": {"max_residents": true}}'}, "[eaco] pools, a, max_residents", "number"),
        ({"pools": '{"a": {"nodes": "x"}}'}, "[eaco] pools, a, nodes", "list"),
        ({"pools": '{"a": {"estimate_error": -1}}'}, "[eaco] pools, a, estimate_error", "at least 0"),
        ({"hold_window": "many"}, "[eaco] hold_window", "number"),
        ({"hold_window": "0"}, "[eaco] hold_window", "at least 1"),
        ({"default_max_stretch": "0.9"}, "[eaco] default_max_stretch", "at least 1"),
        ({"default_max_stretch": "nan"}, "[eaco] default_max_stretch", "number"),
        ({"reject_after": "-1"}, "[eaco] reject_after", "never"),
        ({"planner_ttl": "0"}, "[eaco] planner_ttl", "above 0"),
        ({"rules": "{}"}, "[eaco] rules", "list of objects"),
        ({"simulated_nodes": '[{"gpus": 8}]'}, "[eaco] simulated_nodes", "name"),
        ({"simulated_nodes": '[{"name": "a"}, {"name": "a"}]'}, "[eaco] simulated_nodes", "differ"),
        ({"simulated_nodes": '[{"name": "a", "gpu_memory": "16Gi"}]'}, "[eaco] simulated_nodes", "16Gi"),
        ({"simulated_state": "relative.json"}, "[eaco] simulated_state", "absolute"),
    ],
)
def test_a_value_that_cannot_be_used_is_named(texts, setting, problem):
    """A bad value is refused with the option's name and what is allowed."""
    with pytest.raises(InvalidSettingError) as caught:
        parse(**texts)
    assert caught.value.setting == setting
    assert problem in caught.value.problem


@pytest.mark.parametrize(("text", "limit"), [("none", None), ("1", 1.0)])
def test_stretch_and_rejection_can_be_switched_off(text, limit):
    """``none`` is no stretch limit, ``never`` no rejection."""
    assert parse(default_max_stretch=text).default_max_stretch == limit
    assert parse(reject_after="never").pools[0].reject_after_s == math.inf
