"""What a run was made from, in its summary, and the same scenario made from it again."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from airflow_provider_eaco.core.model.energy_budget import BudgetAction, EnergyBudget
from airflow_provider_eaco.core.model.pool import PredictorName
from airflow_provider_eaco.simulator.beliefs import Belief
from airflow_provider_eaco.simulator.order_workload import DayChoices, DayKind, DemandKept, Oversized
from airflow_provider_eaco.simulator.scenario import (
    BENCHMARKS,
    Accounting,
    Choices,
    Scenario,
    SleepBy,
    from_trace,
)
from airflow_provider_eaco.simulator.trace import TraceError

_CHOICES = {"accounting": Accounting, "sleep": SleepBy, "predictor": PredictorName, "belief": Belief}


def made_from(scenario: Scenario) -> dict[str, object]:
    """Return what the scenario was made from, as JSON values."""
    trace = None if scenario.trace is None else str(scenario.trace)
    return {"trace": trace, "choices": None if scenario.choices is None else asdict(scenario.choices)}


def made_again(folder: Path) -> Scenario:
    """Return the scenario of a run, from its summary.

    :raises TraceError: if the folder has no summary that says what the run was made from, or the trace that
        it names cannot be read any more.
    """
    path = folder / "summary.json"
    try:
        summary: Mapping[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        told = summary["made_from"]
        choices = _choices(told["choices"])
        trace, benchmark = told["trace"], summary["benchmark"]
    except (OSError, ValueError, TypeError, KeyError) as error:
        problem = f"does not say what the run was made from ({error!r}); make it anew with this eaco-sim"
        raise TraceError(str(path), problem) from error
    if trace is not None:
        return from_trace(Path(trace), choices)
    if benchmark not in BENCHMARKS:
        raise TraceError(str(path), f"benchmark is {benchmark!r}; expected {', '.join(sorted(BENCHMARKS))}")
    return BENCHMARKS[benchmark](choices)


def _choices(told: Mapping[str, Any]) -> Choices:
    values = dict(told)
    for name, kind in _CHOICES.items():
        values[name] = None if values[name] is None else kind(values[name])
    values["rules"] = tuple(values["rules"])
    day, budget = values["day"], values["energy_budget"]
    values["day"] = DayChoices(DayKind(day["kind"]), DemandKept(day["demand"]), Oversized(day["oversized"]))
    if budget is not None:
        action = BudgetAction(budget["action"])
        values["energy_budget"] = EnergyBudget(budget["power_w"], budget["kwh_per_day"], action)
    return Choices(**values)
