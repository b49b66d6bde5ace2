"""The [eaco] section as frozen values."""

import json
import math
import re
from configparser import InterpolationSyntaxError
from dataclasses import fields
from pathlib import Path

import pytest

from airflow_provider_eaco.core.model.energy_budget import BudgetAction, EnergyBudget, Shift
from airflow_provider_eaco.core.model.errors import InvalidSettingError
from airflow_provider_eaco.core.model.pool import PoolMode, PoolSettings
from airflow_provider_eaco.core.model.profile import ProfileBook
from airflow_provider_eaco.provider.energy_settings import SeriesSource
from airflow_provider_eaco.provider.options import DEFAULTS, EXAMPLES, OPTIONS
from airflow_provider_eaco.provider.settings import (
    _POOL_CHECKS,
    SimulatedNodeSettings,
    load_settings,
    parse_settings,
)
from airflow_provider_eaco.provider.sleep_settings import SleepSettings
from airflow_provider_eaco.provider.wiring import make_meters
from airflow_provider_eaco.simulator.memory_profiles import MemoryProfileStore

HOME = Path("/airflow")


def parse(has_driver=False, host="gpu-box", **texts):
    return parse_settings(
        lambda name: texts.get(name, DEFAULTS[name]), home=HOME, has_driver=has_driver, host=host
    )


def test_the_defaults_are_one_sharing_pool_on_one_simulated_node():
    """Without any configuration a machine without a GPU has a node to try everything on."""
    settings = parse()
    assert settings.pools == (PoolSettings(),)
    assert settings.simulated_nodes == (SimulatedNodeSettings("sim-gpu-box"),)
    assert settings.simulated_state == HOME / "eaco" / "simulated.json"
    assert settings.default_max_stretch == pytest.approx(1.10)


def test_an_option_that_airflow_itself_cannot_read_is_named(monkeypatch):
    """A single % in airflow.cfg is an error of that option, not of the scheduler."""

    def fail(section, option, **_):
        raise InterpolationSyntaxError(option, section, "'%' must be followed by '%' or '('")

    monkeypatch.setattr("airflow.configuration.conf.get", fail)
    with pytest.raises(InvalidSettingError, match=r"\[eaco\] trial_limit: cannot be read .* '%' must be"):
        load_settings.__wrapped__()


def test_a_machine_with_a_driver_simulates_nothing_by_itself():
    """``auto`` never mixes simulated GPUs with real ones."""
    assert parse(has_driver=True).simulated_nodes == ()


@pytest.mark.parametrize(
    ("host", "name"),
    [
        ("box", "sim-box"),
        ("box.example.org", "sim-box.example.org"),
        ("my box; rm *", "sim-my-box-rm"),
        ("", "sim-host"),
        ("x" * 300, "sim-" + "x" * 64),
    ],
)
def test_the_node_of_auto_is_named_after_its_machine(host, name):
    """Machines that share a database have different nodes, whose names need no quoting in a shell."""
    (node,) = parse(host=host).simulated_nodes
    assert node.name == name
    assert parse(simulated_nodes=json.dumps([{"name": name}])).simulated_nodes == (node,)


@pytest.mark.parametrize(
    ("row", "memory_mib"),
    [
        ({"gpu_model": "V100"}, 16 * 1024),
        ({"gpu_model": "A100-80"}, 80 * 1024),
        ({"gpu_model": "A100-80", "gpu_memory": "40GiB"}, 40 * 1024),
    ],
)
def test_a_simulated_gpu_has_the_memory_of_its_model(row, memory_mib, tmp_path):
    """Memory that is not named is that of the model, not that of a V100."""
    settings = parse(
        simulated_nodes=json.dumps([{"name": "n", **row}]), simulated_state=str(tmp_path / "state.json")
    )
    (meter,) = make_meters(settings, MemoryProfileStore(ProfileBook()))
    (node,) = meter.telemetry.inventory()
    assert {gpu.memory_total_mib for gpu in node.gpus} == {memory_mib}


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
        ({"hold_window": "1000001"}, "[eaco] hold_window", "at most 1000000"),
        ({"pools": '{"a": {"max_residents": 1001}}'}, "[eaco] pools, a, max_residents", "at most 1000"),
        ({"pools": '{"a": {"memory_margin_mib": 1e300}}'}, "[eaco] pools, a, memory_margin_mib", "at most"),
        ({"pools": '{"a": {"ageing_s": 1e10}}'}, "[eaco] pools, a, ageing_s", "at most 1e+09"),
        ({"pools": '{"a": {"trial_limit_s": 1e10}}'}, "[eaco] pools, a, trial_limit_s", "at most 1e+09"),
        ({"trial_limit": "1e30"}, "[eaco] trial_limit", "seconds above 0, at most 1e+09"),
        ({"kill_grace": "1e30"}, "[eaco] kill_grace", "seconds above 0, at most 1e+09"),
        ({"node_timeout": "1e30"}, "[eaco] node_timeout", "seconds above 0, at most 1e+09"),
        ({"simulated_time_scale": "1e308"}, "[eaco] simulated_time_scale", "at most 1e+06"),
        ({"hold_window": "9" * 5000}, "[eaco] hold_window", "9...9"),
        ({"planner_ttl": "1e30"}, "[eaco] planner_ttl", "seconds above 0, at most 1e+09"),
        ({"backfill_priority": "1"}, "[eaco] backfill_priority", "from -1000000000 to 0"),
        ({"backfill_priority": "-1000000001"}, "[eaco] backfill_priority", "from -1000000000 to 0"),
        ({"backfill_priority": "-0.5"}, "[eaco] backfill_priority", "whole number"),
        ({"default_max_stretch": "0.9"}, "[eaco] default_max_stretch", "at least 1"),
        ({"default_max_stretch": "nan"}, "[eaco] default_max_stretch", "number"),
        ({"reject_after": "-1"}, "[eaco] reject_after", "never"),
        ({"planner_ttl": "0"}, "[eaco] planner_ttl", "above 0"),
        ({"pools": '{"": {}}'}, "[eaco] pools", "name of a pool"),
        ({"pools": '{"a\\u0000b": {}}'}, "[eaco] pools", "name of a pool"),
        ({"pools": json.dumps({"x" * 257: {}})}, "[eaco] pools", "256"),
        ({"simulated_nodes": '[{"gpus": 8}]'}, "[eaco] simulated_nodes", "name"),
        ({"simulated_nodes": '[{"name": "a b"}]'}, "[eaco] simulated_nodes", "letters"),
        ({"simulated_nodes": '[{"name": "a", "gpus": 0}]'}, "[eaco] simulated_nodes, a, gpus", "at least 1"),
        (
            {"simulated_nodes": '[{"name": "a", "gpus": 1000000000}]'},
            "[eaco] simulated_nodes, a, gpus",
            "1024",
        ),
        ({"simulated_nodes": '[{"name": "a", "gpu_model": 100}]'}, "[eaco] simulated_nodes", "GPU model"),
        ({"simulated_nodes": '[{"name": "a", "memory": 1}]'}, "[eaco] simulated_nodes", "allowed are"),
        ({"simulated_state": "/a\0b"}, "[eaco] simulated_state", "absolute"),
        ({"simulated_nodes": '[{"name": "a"}, {"name": "a"}]'}, "[eaco] simulated_nodes", "differ"),
        ({"simulated_nodes": '[{"name": "a", "gpu_memory": "16Gi"}]'}, "[eaco] simulated_nodes", "16Gi"),
        ({"simulated_state": "relative.json"}, "[eaco] simulated_state", "absolute"),
        ({"price_series": "price.csv"}, "[eaco] price_series", "absolute path of a CSV file"),
        ({"carbon_series": "ftp://example.org/c.csv"}, "[eaco] carbon_series", "http"),
        ({"max_shift": "-1"}, "[eaco] max_shift", "hours"),
    ],
)
def test_a_value_that_cannot_be_used_is_named(texts, setting, problem):
    """A bad value is refused with the option's name and what is allowed."""
    with pytest.raises(InvalidSettingError) as caught:
        parse(**texts)
    assert caught.value.setting == setting
    assert problem in caught.value.problem
    assert len(caught.value.problem) < 1000


WRONG_IN_POOL = {
    "nodes": ("gpu-*", [], [1], None),
    "mode": ("shared", 1, None, ["share"]),
    "policy": ("", 1, None, ["eaco"]),
    "ordering": (" ", {}, True),
    "spreading": ("wide", 1),
    "max_residents": (0, -1, 1.5, "two", True, None, [2], 10**400),
    "memory_margin_mib": (-1, "512MiB", 0.5),
    "utilisation_limit_pct": (0, -1, "all", math.nan, math.inf),
    "exclusive_priority": (1.5, "high", []),
    "trial_limit_s": (0, "1h", -3),
    "estimate_error": (-0.1, "small", None),
    "predictor": ("clever", 1, None, ["learned"]),
    "reject_after_s": (-1, "soon", None, math.inf),
    "rules": ("ageing", [1], [""], {}),
    "ageing_s": (0, "1h"),
    "reserve_after_s": (-1, None),
    "fair_share": (
        [],
        "dag",
        {"by": "user"},
        {"by": ["dag"]},
        {"half_life_s": 0},
        {"shares": []},
        {"shares": {"a": 0}},
        {"quotas_gpu_h": {"a": "1h"}},
        {"borrowing": 1},
        {"share": 1},
    ),
    "aligned": (1, "yes", None),
    "strangers": ("kill", 1, None, ["yield"]),
    "memory_growth": ("kill", 1, None, ["stop"]),
    "mean_stretch": (0.9, "none", None, math.nan),
    "prices": ("cheap", 1, None, ["lp"]),
    "power_limits": ("on", True, None, ["apply"]),
    "energy_budget": (
        3500,
        {},
        {"action": "hold"},
        {"power_w": 0},
        {"power_w": "3 kW"},
        {"kwh_per_day": -1},
        {"power_w": 1, "action": "stop"},
        {"watts": 1},
    ),
    "shift": (12, {"max_h": -1}, {"horizon_h": 0}, {"factor": 0}, {"max_shift": 1}),
    "demand": ([], {"n1": [1]}, {"n1": 24}, {"n1": [-1] * 24}, {"n1": ["1"] * 23 + ["x"]}),
}


NODE = {"sleep": ["off", "n1"], "wake": ["on", "n1"]}


def test_commands_for_sleep_are_read_with_their_times():
    """Words stay as they are; what is not named has its default; without the option nothing sleeps."""
    text = json.dumps(
        {"n1": NODE, "n2": {**NODE, "idle_s": "60", "wake_timeout_s": 5, "command_timeout_s": 1}}
    )
    assert parse(node_sleep=text).node_sleep == (
        SleepSettings("n1", ("off", "n1"), ("on", "n1"), None, 600.0, 30.0),
        SleepSettings("n2", ("off", "n1"), ("on", "n1"), 60.0, 5.0, 1.0),
    )
    assert parse(node_sleep=" ").node_sleep == ()


@pytest.mark.parametrize(
    ("rows", "problem"),
    [
        ([], "must be a JSON object"),
        ({"n1": []}, "must be a JSON object"),
        ({"a b": NODE}, "must be the name of a node"),
        ({"here": NODE}, "node_sleep, here: is the scheduler's own machine"),
        ({"n1": {**NODE, "command": ["x"]}}, "unknown command"),
        ({"n1": {"sleep": ["off"]}}, "node_sleep, n1, wake: None must be a list of a program"),
        ({"n1": {**NODE, "sleep": "off n1"}}, "node_sleep, n1, sleep: 'off n1' must be a list of a program"),
        ({"n1": {**NODE, "sleep": []}}, "must be a list of a program"),
        ({"n1": {**NODE, "sleep": ["", "x"]}}, "must be a list of a program"),
        ({"n1": {**NODE, "sleep": ["x", 1]}}, "must be a list of a program"),
        ({"n1": {**NODE, "idle_s": 0}}, "node_sleep, n1, idle_s: 0 must be a number above 0"),
        ({"n1": {**NODE, "wake_timeout_s": "10min"}}, "wake_timeout_s: '10min' must be a number above 0"),
        ({"n1": {**NODE, "command_timeout_s": None}}, "command_timeout_s: None must be a number above 0"),
    ],
)
def test_commands_for_sleep_that_cannot_be_used_are_named(rows, problem):
    """With the node and what is allowed."""
    with pytest.raises(InvalidSettingError, match=re.escape(problem)):
        parse(host="here", node_sleep=json.dumps(rows))


def test_an_energy_budget_is_read_with_its_action():
    """Watts, kilowatt-hours per day, or both; what breaks it waits unless it is to be warned of."""
    budgets = {"a": {"power_w": 3500}, "b": {"kwh_per_day": 60, "action": "warn"}}
    text = json.dumps({name: {"energy_budget": budget} for name, budget in budgets.items()})
    first, second = parse(pools=text).pools
    assert first.energy_budget == EnergyBudget(power_w=3500.0)
    assert second.energy_budget == EnergyBudget(kwh_per_day=60.0, action=BudgetAction.WARN)


def test_a_series_gives_every_pool_a_shift_and_a_pool_may_have_its_own():
    """Without a series nothing is shifted, and no pool has a rule for it."""
    assert parse(max_shift="3").pools[0].shift is None
    own = '{"a": {}, "b": {"shift": {"max_h": 1, "horizon_h": 6, "factor": 1.2}}}'
    settings = parse(pools=own, price_series="/data/price.csv", max_shift="3")
    assert [pool.shift for pool in settings.pools] == [Shift(3 * 3600.0), Shift(3600.0, 6 * 3600.0, 1.2)]
    assert settings.series == (SeriesSource("price", "/data/price.csv"),)
    both = parse(price_series="https://example.org/p", carbon_series="/c.csv").series
    assert [(each.name, each.is_http) for each in both] == [("price", True), ("carbon intensity", False)]


def test_every_pool_setting_has_wrong_values_here():
    """The table below covers every setting of a pool."""
    assert set(WRONG_IN_POOL) == set(_POOL_CHECKS)


@pytest.mark.parametrize(
    ("setting", "value"), [(name, value) for name, values in WRONG_IN_POOL.items() for value in values]
)
def test_a_wrong_value_in_a_pool_is_refused_by_name(setting, value):
    """One message names option, pool, setting and what is allowed; nothing else is ever raised."""
    with pytest.raises(InvalidSettingError) as caught:
        parse(pools=json.dumps({"big": {setting: value}}))
    assert str(caught.value).startswith("[eaco] pools")
    if caught.value.setting != "[eaco] pools":  # not JSON at all: NaN and the like are refused there
        assert caught.value.setting.startswith(f"[eaco] pools, big, {setting}")
    assert "must be" in caught.value.problem or "allowed are" in caught.value.problem


JSON_OPTIONS = ("pools", "simulated_nodes", "simulated_truth")
NO_JSON = {
    "cut short": "{",
    "words": "eight",
    "single quotes": "{'a': 1}",
    "text": '"a"',
    "a number": "1",
    "null": "null",
    "list of texts": '["a"]',
    "twice the same": '[{"name": "a", "name": "b"}]',
    "very deep": "[" * 100_000,
    "nothing": "",
}


@pytest.mark.parametrize("text", NO_JSON.values(), ids=NO_JSON)
@pytest.mark.parametrize("option", JSON_OPTIONS)
def test_json_that_cannot_be_used_is_refused_with_an_example(option, text):
    """Whatever stands in an option that takes JSON: its name, what is wrong, and what it may look like."""
    with pytest.raises(InvalidSettingError) as caught:
        parse(**{option: text})
    assert caught.value.setting == f"[eaco] {option}"
    assert EXAMPLES[option] in caught.value.problem


@pytest.mark.parametrize(
    "option",
    ["hold_window", "default_max_stretch", "reject_after", "trial_limit", "planner_ttl", "kill_grace",
     "simulated_time_scale"],
)  # fmt: skip
@pytest.mark.parametrize("text", ["many", "-1", "nan", "inf", "1e999", "[]", "5 s", "true"])
def test_a_number_that_cannot_be_used_is_refused_by_name(option, text):
    """Every option that takes a number says which numbers it takes."""
    with pytest.raises(InvalidSettingError, match=rf"\[eaco\] {option}: .* must be a"):
        parse(**{option: text})


@pytest.mark.parametrize(
    ("own", "section", "expected_s"),
    [
        (None, "300", 300.0),
        (None, "never", math.inf),
        (60, "never", 60.0),
        ("never", "300", math.inf),
        (0, "never", 0.0),
    ],
)
def test_a_pools_own_reject_after_wins(own, section, expected_s):
    """Seconds or never, of the pool where it says so, else of the section."""
    pools = {"a": {} if own is None else {"reject_after_s": own}}
    (pool,) = parse(pools=json.dumps(pools), reject_after=section).pools
    assert pool.reject_after_s == expected_s


@pytest.mark.parametrize(("text", "limit"), [("none", None), ("1", 1.0)])
def test_the_stretch_limit_can_be_switched_off(text, limit):
    """``none`` is no stretch limit."""
    assert parse(default_max_stretch=text).default_max_stretch == limit
