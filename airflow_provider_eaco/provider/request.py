"""The GPU request of a task: written by :func:`gpu_request`, read by :func:`parse_executor_config`.

A request travels in ``executor_config={"eaco": {...}}`` as JSON values under the same names as the arguments,
so that the decorator, a rule and a config written by hand are read by one parser. Imports nothing of Airflow:
this module is loaded whenever a DAG file is parsed.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any, Never

from airflow_provider_eaco.core.model.errors import InvalidRequestError, shortened, shown
from airflow_provider_eaco.core.model.job import MAX_GPUS, GpuRequest, Share
from airflow_provider_eaco.core.model.profile import MAX_FAMILY_LENGTH
from airflow_provider_eaco.core.model.units import (
    format_memory_mib,
    parse_memory_mib,
    parse_seconds,
    to_float,
)

CONFIG_KEY = "eaco"
ARGUMENTS = (
    "gpus",
    "gpu_memory",
    "gpu_model",
    "host_memory",
    "profile",
    "profile_params",
    "max_stretch",
    "deadline",
    "share",
    "shiftable",
)
# The cluster policy writes this into the request of a task that runs in a pod: there it is refused.
POD = "pod"
POD_OVERRIDE = "pod_override"
_ONE_NODE = f"is not offered: one job runs on one node; ask with gpus for up to {MAX_GPUS} GPUs there"
_NO_POD = (
    "a pod of Kubernetes runs where its cluster puts it and gets no GPUs from here; take the GPU request "
    "out, or the pod"
)
# What others offer, each with why it is refused here.
NOT_OFFERED = dict.fromkeys(("nodes", "num_nodes", "nnodes"), _ONE_NODE) | {POD: _NO_POD}

_DIGEST_LENGTH = 8
# Longer than any name that NVML gives, and more than there are models of.
_MAX_MODEL_LENGTH = 96
_MAX_MODELS = 64
_MAX_DEPTH = 32
# What Airflow's serialisation leaves of an object that has no JSON form.
_LOST_OBJECT = re.compile(r"<.+ object at 0x[0-9a-fA-F]+>|<(function|bound method|built-in function) .+>")


def gpu_request(
    gpus: int = 1,
    *,
    gpu_memory: int | str | None = None,
    gpu_model: str | Sequence[str] | None = None,
    host_memory: int | str | None = None,
    profile: str | None = None,
    profile_params: Mapping[str, Any] | None = None,
    max_stretch: float | None = None,
    deadline: timedelta | float | None = None,
    share: str | Share | None = None,
    shiftable: bool | None = None,
    executor_config: Mapping[str, Any] | None = None,
    **unknown: Never,
) -> dict[str, Any]:
    """Return an ``executor_config`` that asks for GPUs; every value in it is JSON.

    :param gpus: number of GPUs on one node, 0 to 16; 0 asks for none, and no rule will add any.
    :param gpu_memory: peak memory per GPU: MiB as a whole number, or text such as ``"10GiB"``.
    :param gpu_model: the GPU model wanted, or several in order of preference; any by default.
    :param host_memory: host memory in the same units as ``gpu_memory``.
    :param profile: the family, which has the profile; by default DAG and task, told apart by what is asked.
    :param profile_params: what changes how it behaves (batch size, depth), as JSON: others, another family.
    :param max_stretch: limit of run time / exclusive run time; by default ``[eaco] default_max_stretch``.
    :param deadline: wall time after the task was first queued, as a ``timedelta`` or in seconds.
    :param share: ``auto`` (the policy decides), ``never``, ``always`` (also unmeasured, if it cannot yield).
    :param shiftable: whether it may wait for cheaper or cleaner energy before it starts; by default not.
    :param executor_config: an existing config, whose other keys are kept; ``pod_override`` is refused.
    :raises InvalidRequestError: for a value that no cluster could read and any other argument; it names it.
    """
    _refuse_unknown(unknown)
    written: dict[str, Any] = {
        "gpus": gpus,
        "gpu_memory": gpu_memory,
        "gpu_model": gpu_model,
        "host_memory": host_memory,
        "profile": profile,
        "profile_params": profile_params,
        "max_stretch": max_stretch,
        "deadline": deadline,
        "share": share,
        "shiftable": shiftable,
    }
    request = _checked({name: value for name, value in written.items() if value is not None})
    return {**_other_keys(executor_config, request["gpus"]), CONFIG_KEY: request}


def _other_keys(executor_config: object, gpus: int) -> Mapping[str, Any]:
    if executor_config is None:
        return {}
    if not isinstance(executor_config, Mapping):
        raise InvalidRequestError("executor_config", f"{shown(executor_config)} must be a dict")
    if gpus:
        _refuse_pod(executor_config)
    return executor_config


def gpu_request_from(
    arguments: Mapping[str, Any], existing: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Return :func:`gpu_request` of ``arguments`` as they stand in a rule or a decorator.

    :raises InvalidRequestError: as :func:`gpu_request` does, and for an argument it does not have.
    """
    _refuse_unknown(arguments)
    return gpu_request(**arguments, executor_config=existing)


def has_request(executor_config: object) -> bool:
    """Tell whether ``executor_config`` says anything about GPUs, readable or not."""
    return isinstance(executor_config, Mapping) and CONFIG_KEY in executor_config


def asks_for_gpus(executor_config: object) -> bool:
    """Tell whether ``executor_config`` asks for GPUs, readable or not: ``gpus=0`` asks for none."""
    if not has_request(executor_config):
        return False
    written = executor_config[CONFIG_KEY]  # type: ignore[index]  # a mapping, since it has a request
    return not (isinstance(written, Mapping) and written.get("gpus") == 0)


def parse_executor_config(
    config: object, *, default_family: str, default_max_stretch: float | None
) -> GpuRequest | None:
    """Return the request in a task's ``executor_config``, or ``None`` if it asks for no GPU.

    :param default_family: ``dag_id.task_id``, used with a digest of the request where no profile is named.
    :param default_max_stretch: the limit for requests without one; ``None`` for no limit.
    :raises InvalidRequestError: if the config cannot be read; it names the argument.
    """
    if config is None:
        return None
    if not isinstance(config, Mapping):
        raise InvalidRequestError(
            "executor_config", f"{shown(config)} must be a dict, as gpu_request() returns"
        )
    if CONFIG_KEY not in config:
        return None
    written = config[CONFIG_KEY]
    if not isinstance(written, Mapping):
        raise InvalidRequestError(
            f"executor_config[{CONFIG_KEY!r}]", f"{shown(written)} must be a dict, as gpu_request() returns"
        )
    _refuse_unknown(written)
    values = _checked({name: value for name, value in written.items() if value is not None})
    if values["gpus"] == 0:
        return None
    _refuse_pod(config)
    return GpuRequest(
        gpus=values["gpus"],
        family=_family(values, default_family),
        gpu_memory_mib=_memory(values, "gpu_memory"),
        gpu_models=tuple(values.get("gpu_model", ())),
        host_memory_mib=_memory(values, "host_memory"),
        max_stretch=values.get("max_stretch", default_max_stretch),
        deadline_s=values.get("deadline"),
        share=Share(values.get("share", Share.AUTO)),
        shiftable=values.get("shiftable", False),
    )


def _refuse_unknown(arguments: Mapping[Any, Any]) -> None:
    for name in arguments:
        if name in NOT_OFFERED:
            raise InvalidRequestError(name, NOT_OFFERED[name])
        if name not in ARGUMENTS:
            raise InvalidRequestError(
                shortened(name) if isinstance(name, str) else shown(name),
                f"is not an argument of a GPU request; use {', '.join(ARGUMENTS)}",
            )


def _refuse_pod(config: Mapping[Any, Any]) -> None:
    if config.get(POD_OVERRIDE) is not None:
        raise InvalidRequestError(f"executor_config[{POD_OVERRIDE!r}]", _NO_POD)


def _checked(written: Mapping[str, Any]) -> dict[str, Any]:
    """Return the same request in its canonical JSON form: memory as ``10240MiB``, a deadline in seconds."""
    for name, value in written.items():
        _refuse_lost_objects(value, name, _MAX_DEPTH)
    checks = {
        "gpus": _check_gpus,
        "gpu_memory": _check_memory,
        "gpu_model": _check_models,
        "host_memory": _check_memory,
        "profile": _check_profile,
        "profile_params": _check_params,
        "max_stretch": _check_stretch,
        "deadline": parse_seconds,
        "share": _check_share,
        "shiftable": _check_flag,
    }
    return {name: check(written[name], name) for name, check in checks.items() if name in written} | (
        {} if "gpus" in written else {"gpus": 1}
    )


def _check_gpus(value: object, argument: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= MAX_GPUS:
        raise InvalidRequestError(
            argument, f"{shown(value)} must be a whole number from 0 to {MAX_GPUS}, all on one node"
        )
    return value


def _check_memory(value: object, argument: str) -> str:
    # Whole MiB with their unit: what is shown in Airflow's UI reads like what was asked.
    return format_memory_mib(parse_memory_mib(value, argument)).replace(" ", "")


def _check_models(value: object, argument: str) -> list[str]:
    models = [value] if isinstance(value, str) else value
    if not isinstance(models, list | tuple) or not models:
        raise InvalidRequestError(
            argument, f"{shown(value)} must be a GPU model or a list of models, best first"
        )
    for model in models:
        if not isinstance(model, str) or not model.strip() or not model.isprintable():
            raise InvalidRequestError(
                argument, f"{shown(model)} is not the name of a GPU model, such as 'V100'"
            )
        if len(model) > _MAX_MODEL_LENGTH:
            raise InvalidRequestError(
                argument,
                f"{len(model)} characters are too many for a GPU model; use at most {_MAX_MODEL_LENGTH}",
            )
    if len(models) > _MAX_MODELS:
        raise InvalidRequestError(argument, f"{len(models)} models are too many; name at most {_MAX_MODELS}")
    return [model.strip() for model in models]


def _check_profile(value: object, argument: str) -> str:
    if not isinstance(value, str) or not value.strip() or not value.isprintable():
        raise InvalidRequestError(argument, f"{shown(value)} must be a name, such as 'resnet50-b64'")
    if len(value) > MAX_FAMILY_LENGTH - _DIGEST_LENGTH - 1:
        raise InvalidRequestError(argument, f"{len(value)} characters are too many; use at most 191")
    return value.strip()


def _check_params(value: object, argument: str) -> dict[str, Any]:
    if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
        raise InvalidRequestError(
            argument, f"{shown(value)} must be a dict of named JSON values, such as {{'batch': 64}}"
        )
    try:
        copied = json.loads(json.dumps(dict(value), allow_nan=False, sort_keys=True))
    except (TypeError, ValueError) as error:
        raise InvalidRequestError(
            argument, f"only JSON values are allowed: {shortened(str(error))}"
        ) from error
    return dict(copied)


def _check_stretch(value: object, argument: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 1 <= to_float(value) < math.inf:
        raise InvalidRequestError(
            argument, f"{shown(value)} must be a number of at least 1 (run time / exclusive run time)"
        )
    return float(value)


def _check_share(value: object, argument: str) -> str:
    allowed = ", ".join(Share)
    if isinstance(value, int | float) and not isinstance(value, bool):
        raise InvalidRequestError(
            argument,
            f"{shown(value)}: a share of a GPU by fraction is not offered; share is auto, never or always. "
            "Say with gpu_memory how much of a GPU the task needs",
        )
    if not isinstance(value, str) or value not in tuple(Share):
        raise InvalidRequestError(argument, f"{shown(value)} must be one of {allowed}")
    return Share(value).value


def _check_flag(value: object, argument: str) -> bool:
    if not isinstance(value, bool):
        raise InvalidRequestError(argument, f"{shown(value)} must be True or False")
    return value


def _refuse_lost_objects(value: object, argument: str, depth: int) -> None:
    if not depth:
        raise InvalidRequestError(argument, f"is nested more than {_MAX_DEPTH} deep; name flat values")
    if isinstance(value, str) and _LOST_OBJECT.fullmatch(value):
        raise InvalidRequestError(
            argument,
            f"{shown(value)} is what is left of an object that Airflow could not store; use JSON values",
        )
    if isinstance(value, Mapping):
        for inner in value.values():
            _refuse_lost_objects(inner, argument, depth - 1)
    elif isinstance(value, list | tuple):
        for inner in value:
            _refuse_lost_objects(inner, argument, depth - 1)


def _memory(values: Mapping[str, Any], argument: str) -> int | None:
    return None if argument not in values else parse_memory_mib(values[argument], argument)


def _family(values: Mapping[str, Any], default_family: str) -> str:
    """Return the family: the profile as named (told apart by its parameters), else the task and its digest.

    The digest covers what changes how a training runs, not its limits: a profile outlives a new deadline.
    """
    params = values.get("profile_params") or {}
    if "profile" in values:
        profile = str(values["profile"])
        return f"{profile}-{_digest([profile, params])}" if params else profile
    asked = {name: values.get(name) for name in ("gpus", "gpu_memory", "gpu_model", "host_memory")}
    digest = _digest([default_family, asked, params])
    return f"{default_family[: MAX_FAMILY_LENGTH - _DIGEST_LENGTH - 1]}-{digest}"


def _digest(value: object) -> str:
    text = json.dumps(value, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:_DIGEST_LENGTH]
