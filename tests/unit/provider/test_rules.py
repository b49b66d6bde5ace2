"""Rules of the configuration: which tasks they give a request, and what a wrong rule does."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from typing import Any

import pytest
from airflow.providers.standard.operators.bash import BashOperator
from airflow.sdk import DAG, task
from airflow.settings import get_policy_plugin_manager

from airflow_provider_eaco.core.model.errors import InvalidRequestError
from airflow_provider_eaco.provider import request, rules

OURS = "airflow_provider_eaco.EacoExecutor"
ANY_TRAINING = {"match": {"dag_id": "train_*"}, "request": {"gpus": 2, "gpu_memory": "10GiB"}}
REQUEST = {"gpus": 2, "gpu_memory": "10240MiB"}


@pytest.fixture(autouse=True)
def _forget() -> None:
    rules.configured_rules.cache_clear()
    rules._warn_once.cache_clear()


@pytest.fixture
def configure(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Set ``[eaco] rules`` (a value or a text) and ``[core] executor`` for this test."""

    def set_options(written: object, executor: str = f"LocalExecutor,{OURS}") -> None:
        text = written if isinstance(written, str) else json.dumps(written)
        monkeypatch.setenv("AIRFLOW__EACO__RULES", text)
        monkeypatch.setenv("AIRFLOW__CORE__EXECUTOR", executor)

    return set_options


def plain_task(**arguments: Any) -> BashOperator:
    """Return ``train_x.fit``, tagged ``gpu``, in queue ``q``."""
    with DAG("train_x", schedule=None, tags=["gpu"]):
        return BashOperator(**{"task_id": "fit", "bash_command": "true", "queue": "q", **arguments})


def ruled(created: Any) -> Any:
    """Return ``created`` after Airflow's cluster policies, ours among them, were called for it."""
    get_policy_plugin_manager().hook.task_policy(task=created)
    return created


MATCHING = {
    "its DAG": {"dag_id": "train_*"},
    "its task": {"task_id": "fit"},
    "its pool": {"pool": "default_pool"},
    "its queue": {"queue": "q"},
    "its tag": {"tag": "gpu"},
    "its operator": {"operator": "BashOperator"},
    "its operator's path": {"operator": "airflow.providers.standard.*"},
    "one of several patterns": {"dag_id": ["x", "*_x"]},
    "all of several matches": {"dag_id": "train_*", "tag": "g*", "task_id": "?it"},
}
OTHER = {
    "another DAG": {"dag_id": "train"},
    "one of two matches": {"dag_id": "train_*", "tag": "cpu"},
    "the other case": {"dag_id": "TRAIN_*"},
    "another operator": {"operator": "PythonOperator"},
}


@pytest.mark.parametrize("match", MATCHING.values(), ids=list(MATCHING))
def test_a_rule_that_fits_gives_the_request(match: dict[str, Any], configure: Callable[..., None]) -> None:
    """All named patterns fit: the task gets request and executor, and stays in its pool and queue."""
    configure([{"match": match, "request": ANY_TRAINING["request"]}])
    created = ruled(plain_task())
    assert created.executor_config == {"eaco": REQUEST}
    assert (created.executor, created.pool, created.queue) == ("EacoExecutor", "default_pool", "q")


@pytest.mark.parametrize("match", OTHER.values(), ids=list(OTHER))
def test_a_rule_that_does_not_fit_changes_nothing(
    match: dict[str, Any], configure: Callable[..., None]
) -> None:
    """One pattern that does not fit is enough to leave the task alone."""
    configure([{"match": match, "request": {"gpus": 1}}])
    created = ruled(plain_task())
    assert created.executor_config == {}
    assert created.executor is None


def test_the_first_rule_that_fits_counts(configure: Callable[..., None]) -> None:
    """Later rules are not looked at, so that an exception can stand before the general case."""
    configure([{"match": {"task_id": "fit"}, "request": {"gpus": 0}}, ANY_TRAINING])
    assert ruled(plain_task()).executor_config == {"eaco": {"gpus": 0}}
    assert ruled(plain_task(task_id="other")).executor_config == {"eaco": REQUEST}


def test_a_request_of_the_dag_wins(configure: Callable[..., None]) -> None:
    """A task that says anything about GPUs itself is not touched."""
    configure([ANY_TRAINING])
    own = request.gpu_request(gpus=1)
    created = ruled(plain_task(executor_config=own))
    assert created.executor_config == own


@pytest.mark.parametrize(
    ("config", "named", "executors", "sent_to"),
    [
        pytest.param(request.gpu_request(gpus=1), None, f"LocalExecutor,{OURS}", "EacoExecutor", id="beside"),
        pytest.param(request.gpu_request(gpus=1), None, OURS, None, id="the default one"),
        pytest.param(request.gpu_request(gpus=1), None, "LocalExecutor", None, id="switched off"),
        pytest.param(
            request.gpu_request(gpus=1), "LocalExecutor", f"LocalExecutor,{OURS}", "LocalExecutor", id="named"
        ),
        pytest.param(request.gpu_request(gpus=0), None, f"LocalExecutor,{OURS}", None, id="no GPU"),
        pytest.param({"eaco": {"gpu": 1}}, None, f"LocalExecutor,{OURS}", "EacoExecutor", id="unreadable"),
        pytest.param({"other": 1}, None, f"LocalExecutor,{OURS}", None, id="no request"),
    ],
)
def test_a_task_with_a_request_is_sent_to_our_executor(
    config: Any, named: str | None, executors: str, sent_to: str | None, configure: Callable[..., None]
) -> None:
    """Without a rule or decorator, too: elsewhere it would run without GPUs and without a reason."""
    configure([], executor=executors)
    created = ruled(plain_task(executor_config=config, executor=named))
    assert (created.executor, created.executor_config) == (sent_to, config)


def test_a_mapped_task_with_a_request_is_sent_to_our_executor(configure: Callable[..., None]) -> None:
    """What the operators-to-be get names it."""
    configure([])
    with DAG("train_x", schedule=None):
        mapped = BashOperator.partial(task_id="fit", executor_config=request.gpu_request(gpus=1)).expand(
            bash_command=["true", "false"]
        )
    assert ruled(mapped).executor == "EacoExecutor"


@pytest.mark.parametrize("config", [["eaco"], "eaco", 3])
def test_c23_a_config_that_is_no_dict_fails_its_task_and_not_the_scheduler(
    config: Any, configure: Callable[..., None], caplog: pytest.LogCaptureFixture
) -> None:
    """Airflow's scheduler ends when it hands such a task over; as a request it is refused with a reason."""
    configure([])
    created = ruled(plain_task(executor_config=config))
    assert created.executor == "EacoExecutor"
    with pytest.raises(InvalidRequestError, match="must be a dict"):
        request.parse_executor_config(created.executor_config, default_family="f", default_max_stretch=None)
    assert f"executor_config of train_x.fit is {config!r}, must be a dict" in caplog.text


@pytest.mark.parametrize(
    ("named", "given"), [("LocalExecutor", False), ("EacoExecutor", True), (OURS, True)], ids=str
)
def test_a_task_that_names_another_executor_is_left_to_it(
    named: str, given: bool, configure: Callable[..., None]
) -> None:
    """Only tasks without an executor, or with ours, get a request."""
    configure([ANY_TRAINING])
    created = ruled(plain_task(executor=named))
    assert request.has_request(created.executor_config) is given
    assert created.executor == named


def test_other_executors_configs_stay(configure: Callable[..., None]) -> None:
    """The request is added beside what the DAG says to others."""
    configure([ANY_TRAINING])
    assert ruled(plain_task(executor_config={"k": 1})).executor_config == {"k": 1, "eaco": REQUEST}


def test_a_rule_can_move_tasks_to_a_pool(configure: Callable[..., None]) -> None:
    """``pool`` of a rule takes the tasks out of the pool that they share with others."""
    configure([{**ANY_TRAINING, "pool": "eaco"}])
    assert ruled(plain_task()).pool == "eaco"


def test_without_our_executor_rules_do_nothing(configure: Callable[..., None]) -> None:
    """Switched off, a rule neither names an unknown executor nor moves a task."""
    configure([{**ANY_TRAINING, "pool": "eaco"}], executor="LocalExecutor")
    created = ruled(plain_task())
    assert (created.executor, created.pool, created.executor_config) == (None, "default_pool", {})


def test_as_the_only_executor_it_is_not_named(configure: Callable[..., None]) -> None:
    """Where ours is the default executor, the task's executor stays the default."""
    configure([ANY_TRAINING], executor=OURS)
    created = ruled(plain_task())
    assert created.executor is None
    assert created.executor_config == {"eaco": REQUEST}


def test_mapped_tasks_get_the_request_too(configure: Callable[..., None]) -> None:
    """Mapped classic and decorated tasks are changed like others, and can still be unmapped."""
    configure([{**ANY_TRAINING, "pool": "eaco"}])
    with DAG("train_x", schedule=None) as dag:
        BashOperator.partial(task_id="classic").expand(bash_command=["true", "false"])

        @task
        def decorated(x: int) -> int:
            return x

        decorated.expand(x=[1, 2])
    for created in dag.tasks:
        ruled(created)
        assert created.executor_config == {"eaco": REQUEST}
        assert (created.executor, created.pool) == ("EacoExecutor", "eaco")
    unmapped = dag.get_task("classic").unmap({"bash_command": "true"})
    assert unmapped.executor_config == {"eaco": REQUEST}


def test_mapped_configs_are_left_alone(configure: Callable[..., None]) -> None:
    """Where each mapped instance brings its own config, a rule would give it twice."""
    configure([ANY_TRAINING])
    with DAG("train_x", schedule=None) as dag:
        BashOperator.partial(task_id="fit", bash_command="true").expand_kwargs(
            [{"executor_config": {"k": 1}}]
        )
    (created,) = dag.tasks
    assert ruled(created).executor_config == {}


UNREADABLE: dict[str, tuple[object, str]] = {
    "no JSON": ("[{", "not JSON"),
    "no list": ({"match": {}}, "must be a JSON list"),
    "a rule that is no object": (["train"], "rule 1"),
    "an unknown part": ([{**ANY_TRAINING, "gpus": 1}], "rule 1"),
    "nothing to match": ([{"match": {}, "request": {}}], "match must name at least one"),
    "an unknown match": ([{"match": {"dag": "x"}, "request": {}}], "match must name at least one"),
    "a number as pattern": ([{"match": {"dag_id": 1}, "request": {}}], "dag_id is 1"),
    "a pool that is no name": ([{**ANY_TRAINING, "pool": 3}], "pool is 3"),
}


@pytest.mark.parametrize(("written", "said"), UNREADABLE.values(), ids=list(UNREADABLE))
def test_a_rule_that_cannot_be_read_is_logged_once_and_ignored(
    written: object, said: str, configure: Callable[..., None], caplog: pytest.LogCaptureFixture
) -> None:
    """DAGs parse as if the rule were not there, and the log says once what is wrong with it."""
    configure(written)
    for _ in range(3):
        assert ruled(plain_task()).executor_config == {}
    (line,) = [record.getMessage() for record in caplog.records if record.name == rules.__name__]
    assert said in line


def test_other_rules_outlive_a_broken_one(
    configure: Callable[..., None], caplog: pytest.LogCaptureFixture
) -> None:
    """One unreadable rule does not take the others with it."""
    configure(["broken", ANY_TRAINING])
    assert ruled(plain_task()).executor_config == {"eaco": REQUEST}


WRONG_REQUESTS = {
    "no object": ("gpus=1", "request"),
    "unknown argument": ({"gpu": 1}, "gpu"),
    "wrong value": ({"gpus": 17}, "gpus"),
    "ambiguous unit": ({"gpu_memory": "16Gi"}, "gpu_memory"),
}


@pytest.mark.parametrize(("wrong", "argument"), WRONG_REQUESTS.values(), ids=list(WRONG_REQUESTS))
def test_c23_a_rule_with_a_wrong_request_leaves_the_task_without_gpus_and_says_so(
    wrong: object, argument: str, configure: Callable[..., None], caplog: pytest.LogCaptureFixture
) -> None:
    """The task stays as its DAG says; one warning names it, the rule and the argument."""
    configure([{"match": {"dag_id": "train_*"}, "request": wrong}, ANY_TRAINING])
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            assert ruled(plain_task()).executor_config == {}
    (line,) = [record.getMessage() for record in caplog.records if record.name == rules.__name__]
    assert line.startswith("train_x.fit gets no GPUs: rule 1 of [eaco] rules: ")
    assert argument in line


def test_a_failure_of_ours_never_stops_parsing(
    configure: Callable[..., None], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Whatever goes wrong inside the policy is logged, and the task stays as it was."""
    configure([ANY_TRAINING])

    def broken(*_: object) -> None:
        raise RuntimeError("boom")

    monkeypatch.setattr(rules, "_facts", broken)
    assert ruled(plain_task()).executor_config == {}
    assert "boom" in caplog.text


class KubernetesPodOperator(BashOperator):
    """Has the name of the operator that starts pods, whose provider is not installed here."""


class CloudPodOperator(KubernetesPodOperator):
    """As the operators of clouds do, starts a pod as a subclass."""


PODS = {
    "the operator": (KubernetesPodOperator, {}),
    "a subclass": (CloudPodOperator, {}),
    "an overridden pod": (BashOperator, {"pod_override": {}}),
}


@pytest.mark.parametrize(("operator", "config"), PODS.values(), ids=list(PODS))
def test_a_pod_that_asks_for_gpus_is_refused_with_a_reason(
    operator: type[BashOperator],
    config: dict[str, Any],
    configure: Callable[..., None],
    caplog: pytest.LogCaptureFixture,
) -> None:
    """It goes to our executor, which fails this task alone; the parser's log says so before."""
    configure([])
    config = {**config, **request.gpu_request(gpus=2)}
    with DAG("train_x", schedule=None) as dag:
        operator(task_id="one", executor_config=config, bash_command="true")
        operator.partial(task_id="mapped", executor_config=config).expand(bash_command=["true"])
    for created in map(ruled, dag.tasks):
        assert created.executor == "EacoExecutor"
        with pytest.raises(InvalidRequestError, match="a pod of Kubernetes runs where its cluster puts it"):
            request.parse_executor_config(
                created.executor_config, default_family="f", default_max_stretch=None
            )
        assert f"{created.task_id} asks for GPUs and cannot have them" in caplog.text


@pytest.mark.parametrize(
    ("operator", "arguments"),
    [
        pytest.param(KubernetesPodOperator, {"executor_config": request.gpu_request(gpus=0)}, id="no GPU"),
        pytest.param(
            KubernetesPodOperator,
            {"executor_config": request.gpu_request(gpus=1), "executor": "LocalExecutor"},
            id="another executor",
        ),
        pytest.param(KubernetesPodOperator, {}, id="no request, a rule fits"),
        pytest.param(BashOperator, {"executor_config": {"pod_override": {}}}, id="no request, its own pod"),
    ],
)
def test_other_pods_are_left_alone(
    operator: type[BashOperator], arguments: dict[str, Any], configure: Callable[..., None]
) -> None:
    """One that asks us for nothing runs as its DAG says, whatever rule would fit it."""
    configure([ANY_TRAINING])
    with DAG("train_x", schedule=None):
        created = ruled(operator(task_id="fit", bash_command="true", **arguments))
    assert created.executor_config == arguments.get("executor_config", {})
    assert created.executor == arguments.get("executor")
