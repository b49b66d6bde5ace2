"""GPU requests: what can be asked, what is refused when the DAG is parsed, and what the executor reads."""

from __future__ import annotations

import json
import math
from datetime import timedelta
from typing import Any

import pytest
from airflow.serialization.serialized_objects import BaseSerialization

from airflow_provider_eaco.core.model.errors import InvalidRequestError
from airflow_provider_eaco.core.model.job import GpuRequest, Share
from airflow_provider_eaco.core.model.profile import MAX_FAMILY_LENGTH
from airflow_provider_eaco.provider.request import (
    ARGUMENTS,
    gpu_request,
    gpu_request_from,
    has_request,
    parse_executor_config,
)


def parse(config: object, default_family: str = "dag.task", limit: float | None = 1.1) -> GpuRequest | None:
    return parse_executor_config(config, default_family=default_family, default_max_stretch=limit)


def parsed(**arguments: Any) -> GpuRequest:
    request = parse(gpu_request(**arguments))
    assert request is not None
    return request


def stored(config: dict[str, Any]) -> Any:
    """Return ``config`` as it comes back from Airflow's serialised DAG."""
    return BaseSerialization.deserialize(BaseSerialization.serialize(config))


def test_every_argument_reaches_the_executor() -> None:
    """What the author asks for is what the executor reads, in canonical units."""
    request = parsed(
        gpus=8,
        gpu_memory="10GiB",
        gpu_model=["V100", "A100"],
        host_memory="64GB",
        profile="J3",
        max_stretch=1.25,
        deadline=timedelta(hours=6),
        share="never",
        shiftable=True,
    )
    assert request == GpuRequest(
        gpus=8,
        family="J3",
        gpu_memory_mib=10240,
        gpu_models=("V100", "A100"),
        host_memory_mib=61036,
        max_stretch=1.25,
        deadline_s=21600.0,
        share=Share.NEVER,
        shiftable=True,
    )


def test_defaults_leave_to_the_configuration_what_the_author_does_not_say() -> None:
    """A bare request is one GPU under the configured limit, with everything else unknown."""
    request = parse(gpu_request(), limit=1.2)
    assert request is not None
    assert (request.gpus, request.max_stretch, request.share) == (1, 1.2, Share.AUTO)
    assert (request.gpu_memory_mib, request.host_memory_mib, request.deadline_s) == (None, None, None)
    unlimited = parse(gpu_request(), limit=None)
    assert unlimited is not None
    assert unlimited.max_stretch is None


def test_the_config_is_json_and_survives_airflow() -> None:
    """The config holds JSON values only, and reads the same before and after Airflow stored it."""
    config = gpu_request(
        gpu_memory=4096,
        gpu_model=("V100",),
        deadline=timedelta(minutes=5),
        profile_params={"batch": [1, 2.5, None]},
    )
    assert json.loads(json.dumps(config)) == config
    assert parse(stored(config)) == parse(config)


def test_an_existing_executor_config_is_kept() -> None:
    """Keys of other executors stay, and the given dict is not changed."""
    existing = {"KubernetesExecutor": {"image": "x"}}
    assert gpu_request(executor_config=existing) == {**existing, "eaco": {"gpus": 1}}
    assert existing == {"KubernetesExecutor": {"image": "x"}}


@pytest.mark.parametrize(
    ("written", "mib"),
    [
        (16384, 16384),
        ("16384MiB", 16384),
        ("16GiB", 16384),
        ("16GB", 15259),
        ("1.5GiB", 1536),
    ],
)
@pytest.mark.parametrize("argument", ["gpu_memory", "host_memory"])
def test_c39_memory_units_are_exact(argument: str, written: int | str, mib: int) -> None:
    """GB and GiB differ, a number is MiB, and the request shows MiB with the unit."""
    config = gpu_request(**{argument: written})  # type: ignore[arg-type]  # by name
    assert config["eaco"][argument] == f"{mib}MiB"
    assert getattr(parse(config), f"{argument}_mib") == mib


@pytest.mark.parametrize("written", ["16Gi", "16 gb", "sixteen"])
@pytest.mark.parametrize("argument", ["gpu_memory", "host_memory"])
def test_c39_ambiguous_units_are_refused(argument: str, written: str) -> None:
    """What could mean two things is refused with the argument's name and what is allowed."""
    with pytest.raises(InvalidRequestError, match=rf"^{argument}: .*(units are|write)") as caught:
        gpu_request(**{argument: written})  # type: ignore[arg-type]  # by name
    assert caught.value.argument == argument


REFUSED: dict[str, tuple[str, Any]] = {
    "no memory": ("gpu_memory", 0),
    "negative memory": ("gpu_memory", -1),
    "negative text": ("gpu_memory", "-1GiB"),
    "memory that is no number": ("gpu_memory", math.nan),
    "empty memory": ("gpu_memory", ""),
    "bytes taken for MiB": ("gpu_memory", 10**12),
    "a float without unit": ("gpu_memory", 1e12),
    "endless memory": ("gpu_memory", math.inf),
    "true memory": ("gpu_memory", True),
    "no host memory": ("host_memory", 0),
    "no GPUs at all, wrong": ("gpus", -1),
    "more GPUs than a node has": ("gpus", 17),
    "half a GPU": ("gpus", 0.5),
    "a GPU in words": ("gpus", "1"),
    "yes to GPUs": ("gpus", True),
    "zero share": ("share", 0),
    "share above one": ("share", 1.5),
    "fraction": ("share", 0.6),
    "share in other words": ("share", "sometimes"),
    "yes to share": ("share", True),
    "shiftable in words": ("shiftable", "yes"),
    "shiftable as a number": ("shiftable", 1),
    "faster than alone": ("max_stretch", 0.9),
    "negative stretch": ("max_stretch", -1),
    "stretch that is no number": ("max_stretch", math.nan),
    "endless stretch": ("max_stretch", math.inf),
    "stretch in words": ("max_stretch", "1.1"),
    "no time": ("deadline", timedelta(0)),
    "time in the past": ("deadline", timedelta(hours=-1)),
    "deadline in words": ("deadline", "6h"),
    "deadline that is no number": ("deadline", math.nan),
    "no model": ("gpu_model", ""),
    "list of no models": ("gpu_model", []),
    "model by number": ("gpu_model", [100]),
    "empty profile": ("profile", " "),
    "profile by number": ("profile", 3),
    "profile on two lines": ("profile", "a\nb"),
    "endless profile": ("profile", "x" * 192),
    "profile with NUL": ("profile", "a\0b"),
    "profile with half a character": ("profile", "a\ud800"),
    "model with NUL": ("gpu_model", "V100\0"),
    "model on two lines": ("gpu_model", ["V100", "A\n100"]),
    "endless model": ("gpu_model", "x" * 97),
    "endless list of models": ("gpu_model", ["V100"] * 65),
    "memory with NUL": ("gpu_memory", "1GiB\0"),
    "share with NUL": ("share", "auto\0"),
    "params in params": ("profile_params", json.loads('{"a":' * 40 + "1" + "}" * 40)),
    "params in words": ("profile_params", "batch=64"),
    "params with an object": ("profile_params", {"model": object()}),
    "params that are no number": ("profile_params", {"rate": math.nan}),
    "params without names": ("profile_params", {1: 2}),
    "params with a number too long for text": ("profile_params", {"seed": 10**5000}),
    "stretch beyond any float": ("max_stretch", 10**400),
    "stretch too long for text": ("max_stretch", 10**5000),
    "time beyond any float": ("deadline", 10**400),
    "time too long for text": ("deadline", 10**5000),
    "past beyond any float": ("deadline", -(10**400)),
    "memory too long for a number": ("gpu_memory", "9" * 5000 + "GiB"),
    "memory too exact for a number": ("host_memory", "1." + "9" * 5000 + "GiB"),
    "memory too long for text": ("gpu_memory", 10**5000),
    "GPUs too long for text": ("gpus", 10**5000),
    "share too long for text": ("share", 10**5000),
}


@pytest.mark.parametrize(("argument", "value"), REFUSED.values(), ids=list(REFUSED))
def test_c15_odd_requests_are_refused_when_the_dag_is_parsed(argument: str, value: Any) -> None:
    """A value that no cluster could read is refused at once, by the author's side and by the executor's."""
    with pytest.raises(InvalidRequestError) as author:
        gpu_request(**{argument: value})
    with pytest.raises(InvalidRequestError) as executor:
        parse({"eaco": {argument: value}})
    assert author.value.argument == executor.value.argument == argument


LONG = "\N{SNOWMAN}" * 3_000_000
VAST: dict[str, object] = {
    **{name: {name: LONG} for name in ARGUMENTS},
    "unit": {"gpu_memory": "1" + "x" * 3_000_000},
    "model in a list": {"gpu_model": ["V100", LONG]},
    "what is left of an object": {"profile": f"<{LONG} object at 0x1>"},
    "unknown argument": {LONG: 1},
    "unknown argument by number": {10**5000: 1},
    "request": LONG,
}


@pytest.mark.parametrize("request_", VAST.values(), ids=list(VAST))
def test_c15_the_error_about_a_vast_value_is_short(request_: object) -> None:
    """What is wrong is told in a line that fits a log and a row, however long the value is."""
    with pytest.raises(InvalidRequestError) as caught:
        parse({"eaco": request_})
    assert len(str(caught.value)) < 400


def test_c15_a_fraction_is_refused_with_what_is_offered_instead() -> None:
    """``share=0.6`` says that fractions are not offered, and what is."""
    with pytest.raises(InvalidRequestError) as caught:
        gpu_request(share=0.6)  # type: ignore[arg-type]  # the wrong type is the case
    assert "a share of a GPU by fraction is not offered; share is auto, never or always" in str(caught.value)


@pytest.mark.parametrize("gpus", [1, 8, 16])
def test_c15_up_to_sixteen_gpus_can_be_asked(gpus: int) -> None:
    """One node's worth of GPUs is a request."""
    assert parsed(gpus=gpus).gpus == gpus


@pytest.mark.parametrize(
    "config", [None, {}, {"KubernetesExecutor": {}}, gpu_request(gpus=0), {"eaco": {"gpus": 0}}]
)
def test_a_task_that_asks_for_no_gpu_has_no_request(config: object) -> None:
    """Without our key, or with ``gpus=0``, the task is an ordinary one."""
    assert parse(config) is None


BROKEN: dict[str, tuple[object, str]] = {
    "config is text": ("gpus=1", "executor_config"),
    "config is an object": (object(), "executor_config"),
    "request is text": ({"eaco": "gpus=1"}, "executor_config['eaco']"),
    "request is a list": ({"eaco": [1]}, "executor_config['eaco']"),
    "unknown key": ({"eaco": {"gpu": 1}}, "gpu"),
    "key is a number": ({"eaco": {1: 1}}, "1"),
    "wrong type": ({"eaco": {"gpus": [1]}}, "gpus"),
}


@pytest.mark.parametrize(("config", "argument"), BROKEN.values(), ids=list(BROKEN))
def test_c23_a_broken_config_is_refused_by_name(config: object, argument: str) -> None:
    """A config that cannot be read is an error of ours that names the argument, never a crash."""
    with pytest.raises(InvalidRequestError) as caught:
        parse(config)
    assert caught.value.argument == argument


@pytest.mark.parametrize("argument", ["gpus", "gpu_memory", "profile", "profile_params", "gpu_model"])
def test_c23_what_airflow_could_not_store_is_detected(argument: str) -> None:
    """An object that serialisation turned into text is recognised, also inside of lists and dicts."""
    lost: Any = object()
    written = {"profile_params": {"model": [lost]}, "gpu_model": [lost]}.get(argument, lost)
    with pytest.raises(InvalidRequestError) as caught:
        parse(stored({"eaco": {argument: written}}))
    assert caught.value.argument == argument


def test_a_hand_written_timedelta_reads_like_the_function_s() -> None:
    """A ``timedelta`` in a config written by hand comes through Airflow as the same deadline."""
    config = stored({"eaco": {"deadline": timedelta(hours=1)}})
    assert parse(config) == parse(gpu_request(deadline=3600))


SAME_FAMILY = {
    "another limit": {"max_stretch": 2.0},
    "a deadline": {"deadline": 60},
    "another wish to share": {"share": "always"},
    "time for cheaper energy": {"shiftable": True},
    "the same memory, spelt otherwise": {"gpu_memory": 1024},
    "empty parameters": {"profile_params": {}},
}
OTHER_FAMILY = {
    "more GPUs": {"gpus": 2},
    "more memory": {"gpu_memory": "2GiB"},
    "another model": {"gpu_model": "V100"},
    "more host memory": {"host_memory": "2GiB"},
    "parameters": {"profile_params": {"batch": 64}},
}


@pytest.mark.parametrize("change", SAME_FAMILY.values(), ids=list(SAME_FAMILY))
def test_c61_limits_do_not_change_the_family(change: dict[str, Any]) -> None:
    """What does not change how a training runs keeps its profile."""
    assert parsed(**{"gpu_memory": "1GiB", **change}).family == parsed(gpu_memory="1GiB").family


@pytest.mark.parametrize("change", OTHER_FAMILY.values(), ids=list(OTHER_FAMILY))
def test_c61_changed_parameters_are_a_new_family(change: dict[str, Any]) -> None:
    """What changes how a training runs gives it a profile of its own."""
    assert parsed(**{"gpu_memory": "1GiB", **change}).family != parsed(gpu_memory="1GiB").family


def test_c61_profile_params_tell_families_of_one_profile_apart() -> None:
    """A named profile is the family; with parameters there is one family for each set of them."""
    assert parsed(profile="J3").family == "J3"
    small = parsed(profile="J3", profile_params={"batch": 64, "depth": 2}).family
    assert small == parsed(profile="J3", profile_params={"depth": 2, "batch": 64}).family
    assert small.startswith("J3-")
    assert small != parsed(profile="J3", profile_params={"batch": 128, "depth": 2}).family


def test_default_families_name_the_task_and_fit_the_store() -> None:
    """The default family shows the task; the longest DAG and task ids stay within the limit and apart."""
    assert parsed().family.startswith("dag.task-")
    long = ["d" * 250 + "." + "t" * 249 + end for end in "ab"]
    families = {request.family for each in long if (request := parse(gpu_request(), each))}
    assert len(families) == 2
    assert max(map(len, families)) <= MAX_FAMILY_LENGTH


def test_a_rule_s_arguments_are_checked_by_name() -> None:
    """Unknown arguments are refused with the list of those that exist."""
    assert gpu_request_from({"gpus": 2}, {"x": 1}) == {"x": 1, "eaco": {"gpus": 2}}
    with pytest.raises(InvalidRequestError) as caught:
        gpu_request_from({"gpus": 1, "gpu_mem": "1GiB"})
    assert caught.value.argument == "gpu_mem"
    assert all(name in caught.value.problem for name in ARGUMENTS)


def test_even_an_unreadable_request_is_one() -> None:
    """A rule must not replace what a DAG says, even if nobody can read it."""
    assert has_request({"eaco": None})
    assert not has_request({"other": 1})
    assert not has_request(None)


@pytest.mark.parametrize("argument", ["nodes", "num_nodes", "nnodes"])
def test_a_job_of_several_nodes_is_refused_with_the_reason(argument: str) -> None:
    """Called, and written by hand into a config: one job runs on one node."""
    said = rf"^{argument}: is not offered: one job runs on one node"
    with pytest.raises(InvalidRequestError, match=said):
        gpu_request(**{argument: 2})
    with pytest.raises(InvalidRequestError, match=said):
        parse({"eaco": {"gpus": 1, argument: 2}})


def test_an_unknown_argument_is_refused_with_those_that_there_are() -> None:
    """As in a config that is written by hand."""
    with pytest.raises(InvalidRequestError, match=r"^gpu_mem: is not an argument of a GPU request; use gpus"):
        gpu_request(gpu_mem=2)


def test_a_pod_is_refused_beside_a_request_for_gpus_alone() -> None:
    """What is granted here never reaches a pod; without GPUs there is nothing to refuse."""
    pod = {"pod_override": {"spec": {}}}
    said = r"^executor_config\['pod_override'\]: a pod of Kubernetes"
    with pytest.raises(InvalidRequestError, match=said):
        gpu_request(executor_config=pod)
    with pytest.raises(InvalidRequestError, match=said):
        parse({**pod, "eaco": {"gpus": 1}})
    config = gpu_request(gpus=0, executor_config=pod)
    assert config == {**pod, "eaco": {"gpus": 0}}
    assert parse(config) is None
    assert parse(pod) is None
