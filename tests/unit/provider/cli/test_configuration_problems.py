"""`airflow eaco status` names what is wrong with the section that only shows when it is used."""

from __future__ import annotations

import json

import pytest

from airflow_provider_eaco.provider.settings import load_settings
from tests.unit.provider.cli.rig import Cli, Cluster

POOL = "AIRFLOW__EACO__POOLS"
RULES = "AIRFLOW__EACO__RULES"
WRONG = {
    "policy": (POOL, {"p": {"mode": "share", "policy": "nope"}}, "policy: 'nope' is not known"),
    "ordering": (POOL, {"p": {"mode": "share", "ordering": "nope"}}, "ordering: 'nope' is not known"),
    "rules of a pool": (POOL, {"p": {"mode": "share", "rules": ["nope"]}}, "[eaco] pools, p, rules"),
    "no list of rules": (RULES, {}, "[eaco] rules: must be a JSON list"),
    "a rule that is none": (RULES, [1], "[eaco] rules, rule 1: must be an object"),
    "the request of a rule": (
        RULES,
        [{"match": {"dag_id": "x"}, "request": {"gpus": -1}}],
        "[eaco] rules, rule 1: gpus",
    ),
    "the model of a node": (
        "AIRFLOW__EACO__SIMULATED_NODES",
        [{"name": "n", "gpus": 1, "gpu_model": "Z9"}],
        "gpu_model of n is 'Z9', must be one of",
    ),
    "the truth": ("AIRFLOW__EACO__SIMULATED_TRUTH", [{"x": 1}], "simulated_truth"),
}


@pytest.mark.parametrize("wrong", WRONG.values(), ids=WRONG.keys())
def test_status_names_what_nothing_can_be_made_from(
    wrong: tuple[str, object, str], cluster: Cluster, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In words and for programs; the rest of the status is there all the same."""
    option, value, words = wrong
    monkeypatch.setenv(option, json.dumps(value))
    load_settings.cache_clear()
    shown = cli("status").out
    (line,) = [line for line in shown.splitlines() if line.startswith("Configuration: ")]
    assert words in line
    assert "Tasks: 0 hold GPUs, 0 wait" in shown
    (status,) = cli("status", "-o", "json").json()
    assert [line.removeprefix("Configuration: ")] == status["problems"]


def test_a_section_that_works_has_no_problems(cluster: Cluster, cli: Cli) -> None:
    """Nothing is said where nothing is wrong."""
    assert "Configuration:" not in cli("status").out
    assert cli("status", "-o", "json").json()[0]["problems"] == []
