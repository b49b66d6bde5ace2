"""Rules of the configuration that give GPU requests to tasks whose DAGs name none.

Airflow loads this module through the entry point group ``airflow.policy`` and calls :func:`task_policy` for
every task after its DAG was parsed. ``[eaco] rules`` is a JSON list; of each rule, ``match`` names shell
patterns that must all fit, ``request`` holds the arguments of :func:`~airflow_provider_eaco.gpu_request`, and
``pool`` (optional) moves the task to that Airflow pool. The first rule that fits is the one that counts.

A task that asks for GPUs itself and names no executor is sent to EacoExecutor where that is configured and
not Airflow's default one: on another executor it would run without GPUs and without a reason. One that runs
in a pod of Kubernetes gets a request that is refused with that reason when the task is to start.

Nothing here stops a DAG from being parsed. A rule that cannot be read is logged once and ignored. A rule
whose request is wrong still counts where it fits: the task is left without GPUs, and a warning says so.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import lru_cache
from typing import Any

from airflow.policies import hookimpl

from airflow_provider_eaco.core.model.errors import InvalidRequestError, InvalidSettingError
from airflow_provider_eaco.provider.option_values import read_json
from airflow_provider_eaco.provider.options import DEFAULTS, SECTION
from airflow_provider_eaco.provider.request import (
    CONFIG_KEY,
    POD,
    POD_OVERRIDE,
    asks_for_gpus,
    gpu_request_from,
    has_request,
)
from airflow_provider_eaco.provider.routing import Route, configured_route, names_ours

log = logging.getLogger(__name__)

SETTING = "[eaco] rules"
MATCHES = ("pool", "queue", "dag_id", "task_id", "tag", "operator")

_POD_OPERATOR_CLASS = "KubernetesPodOperator"


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule: ``request`` is what goes into ``executor_config``, or ``problem`` says why there is none."""

    number: int
    match: Mapping[str, tuple[str, ...]]
    request: Mapping[str, Any] | None = None
    pool: str | None = None
    problem: str | None = None

    def fits(self, facts: Mapping[str, Iterable[str]]) -> bool:
        """Tell whether every named match fits one of the task's values for it."""
        return all(
            any(fnmatchcase(value, pattern) for value in facts[name] for pattern in patterns)
            for name, patterns in self.match.items()
        )


@hookimpl
def task_policy(task: Any) -> None:
    """Give the task the request of the first rule that fits, unless it has one or another executor; send one
    that has a request to our executor.
    """
    try:
        _apply(task)
    except Exception:
        log.exception("The rules could not be applied to %s; it stays as its DAG says", task.task_id)


def _apply(task: Any) -> None:
    from airflow.sdk.configuration import conf

    route = configured_route()
    if route is None:
        return
    if not isinstance(task.executor_config or {}, Mapping):
        _keep_unreadable(task)
    if has_request(task.executor_config):
        _send(task, route)
        return
    rules = configured_rules(conf.get(SECTION, "rules", fallback=DEFAULTS["rules"]))
    if not rules or _maps_executor_config(task) or (task.executor and not names_ours(task.executor)):
        return
    facts = _facts(task)
    rule = next((rule for rule in rules if rule.fits(facts)), None)
    if rule is None:
        return
    asked = {CONFIG_KEY: rule.request}
    problem = rule.problem or (_pod_of(task) if asks_for_gpus(asked) else None)
    if problem or rule.request is None:
        _warn_once(f"{task.dag_id}.{task.task_id} gets no GPUs: rule {rule.number} of {SETTING}: {problem}")
        return
    changes: dict[str, Any] = {
        "executor_config": {**(task.executor_config or {}), CONFIG_KEY: dict(rule.request)}
    }
    if not task.executor and route.executor:
        changes["executor"] = route.executor
    if rule.pool:
        changes["pool"] = rule.pool
    _change(task, changes)


def _send(task: Any, route: Route) -> None:
    """Send a task that asks for GPUs itself to our executor. A pod's request fails its task there alone."""
    # gpus=0 is a task without GPUs: it goes wherever Airflow's defaults send it.
    if not asks_for_gpus(task.executor_config) or (task.executor and not names_ours(task.executor)):
        return
    pod, config = _pod_of(task), task.executor_config
    if pod:
        _warn_once(f"{task.dag_id}.{task.task_id} asks for GPUs and cannot have them: {pod}")
        if isinstance(config[CONFIG_KEY], Mapping):
            _change(task, {"executor_config": {**config, CONFIG_KEY: {POD: pod, **config[CONFIG_KEY]}}})
    if not task.executor and route.executor:
        _change(task, {"executor": route.executor})


def _pod_of(task: Any) -> str | None:
    """Return why the task runs in a pod of Kubernetes, where nothing of ours is granted; ``None`` if not."""
    if (task.executor_config or {}).get(POD_OVERRIDE) is not None:
        return f"its executor_config has {POD_OVERRIDE}"
    # By name: the provider of Kubernetes need not be there, and the operators of clouds are subclasses.
    classes = getattr(_operator(task), "__mro__", ())
    if _POD_OPERATOR_CLASS in {each.__name__ for each in classes}:
        return f"{task.task_type} starts a pod"
    return None


def _keep_unreadable(task: Any) -> None:
    """Put a config that is no dict where a request stands: there it fails its task alone, with a reason.

    As it is, it would end Airflow's scheduler when that hands the task over.
    """
    _warn_once(f"executor_config of {task.dag_id}.{task.task_id} is {task.executor_config!r}, must be a dict")
    _change(task, {"executor_config": {CONFIG_KEY: task.executor_config}})


def _change(task: Any, changes: Mapping[str, Any]) -> None:
    # A mapped task keeps the arguments of its operators-to-be, and has no setter for some of them.
    partial = getattr(task, "partial_kwargs", None)
    if partial is not None:
        partial.update(changes)
        return
    for name, value in changes.items():
        setattr(task, name, value)


def _maps_executor_config(task: Any) -> bool:
    """Tell whether each mapped instance brings a config of its own, which may not be given twice."""
    mapped = getattr(getattr(task, "expand_input", None), "value", None)
    return isinstance(mapped, list | tuple) and any("executor_config" in each for each in mapped)


def _operator(task: Any) -> Any:
    """Return the class of the task's operator, of a mapped task that of its operators-to-be."""
    return getattr(task, "operator_class", None) or type(task)


def _facts(task: Any) -> dict[str, set[str]]:
    operator = _operator(task)
    path = f"{operator.__module__}.{operator.__qualname__}" if isinstance(operator, type) else ""
    dag = getattr(task, "dag", None)
    return {
        "pool": {str(task.pool)},
        "queue": {str(task.queue)},
        "dag_id": {task.dag_id},
        "task_id": {task.task_id},
        "tag": set(getattr(dag, "tags", None) or ()),
        "operator": {task.task_type, str(getattr(task, "operator_name", task.task_type)), path},
    }


@lru_cache(maxsize=4)
def configured_rules(text: str) -> tuple[Rule, ...]:
    """Return the rules in the text of ``[eaco] rules``; what cannot be read is logged once and left out."""
    rules, problems = read_rules(text)
    for problem in problems:
        log.error(problem)
    return rules


def read_rules(text: str) -> tuple[tuple[Rule, ...], tuple[str, ...]]:
    """Return the rules in the text, and a sentence for each thing in it that cannot be read."""
    if not text.strip():
        return (), ()
    try:
        written = read_json("rules", text)
    except InvalidSettingError as error:
        return (), (f"{error}; no rule applies",)
    if not isinstance(written, list):
        return (), (f"{SETTING}: must be a JSON list of rules, no rule applies",)
    rules, problems = [], []
    for number, entry in enumerate(written, start=1):
        try:
            rules.append(read_rule(number, entry))
        except InvalidSettingError as error:
            problems.append(f"{error}; this rule is ignored")
    return tuple(rules), tuple(problems)


def read_rule(number: int, entry: object) -> Rule:
    """Return the rule that ``entry`` describes, the ``number``-th of the list.

    :raises InvalidSettingError: if nobody could tell which tasks it means.
    """
    setting = f"{SETTING}, rule {number}"
    if not isinstance(entry, dict) or not entry.keys() <= {"match", "request", "pool"}:
        raise InvalidSettingError(setting, "must be an object with match, request and, if wanted, pool")
    match = _read_match(setting, entry.get("match"))
    pool = entry.get("pool")
    if pool is not None and (not isinstance(pool, str) or not pool):
        raise InvalidSettingError(setting, f"pool is {pool!r}, must be the name of an Airflow pool")
    request = entry.get("request")
    if not isinstance(request, dict):
        return Rule(number, match, problem=f"request is {request!r}, must be an object such as {{'gpus': 1}}")
    try:
        return Rule(number, match, gpu_request_from(request)[CONFIG_KEY], pool)
    except InvalidRequestError as error:
        return Rule(number, match, problem=str(error))


def _read_match(setting: str, written: object) -> dict[str, tuple[str, ...]]:
    if not isinstance(written, dict) or not written or not written.keys() <= set(MATCHES):
        raise InvalidSettingError(
            setting, f"match must name at least one of {', '.join(MATCHES)}, and no other"
        )
    match = {}
    for name, patterns in written.items():
        listed = [patterns] if isinstance(patterns, str) else patterns
        if not isinstance(listed, list) or not listed or not all(isinstance(each, str) for each in listed):
            raise InvalidSettingError(
                setting, f"{name} is {patterns!r}, must be a shell pattern or a list of them"
            )
        match[name] = tuple(listed)
    return match


@lru_cache(maxsize=4096)
def _warn_once(text: str) -> None:
    log.warning(text)
