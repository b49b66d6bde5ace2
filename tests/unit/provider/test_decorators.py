"""``@task.eaco``: what it writes into tasks, however they are created and wherever it is switched on."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from airflow.sdk import DAG, setup, task, task_group, teardown
from airflow.serialization.serialized_objects import DagSerialization

from airflow_provider_eaco.core.model.errors import InvalidRequestError

OURS = "airflow_provider_eaco.EacoExecutor"
BESIDE = f"LocalExecutor,{OURS}"


@pytest.fixture
def configure(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Set ``[core] executor`` and ``[eaco] pools`` for this test."""

    def set_options(executor: str, pools: str | None = None) -> None:
        monkeypatch.setenv("AIRFLOW__CORE__EXECUTOR", executor)
        if pools is not None:
            monkeypatch.setenv("AIRFLOW__EACO__POOLS", pools)

    return set_options


def only_task(dag: DAG) -> Any:
    (found,) = dag.tasks
    return found


def called() -> DAG:
    with DAG("d", schedule=None) as dag:

        @task.eaco(gpus=2, gpu_memory="10GiB", max_stretch=1.1, deadline=timedelta(hours=6))
        def train(x: int = 1) -> int:
            return x

        train()
    return dag


def expanded() -> DAG:
    with DAG("d", schedule=None) as dag:

        @task.eaco(gpus=2, gpu_memory="10GiB", max_stretch=1.1, deadline=timedelta(hours=6))
        def train(x: int) -> int:
            return x

        train.expand(x=[1, 2])
    return dag


def prepared_and_expanded() -> DAG:
    with DAG("d", schedule=None) as dag:

        @task.eaco(gpus=2, gpu_memory="10GiB", max_stretch=1.1, deadline=timedelta(hours=6))
        def train(x: int, y: int) -> int:
            return x + y

        train.partial(y=1).expand(x=[1, 2])
    return dag


def expanded_by_dicts() -> DAG:
    with DAG("d", schedule=None) as dag:

        @task.eaco(gpus=2, gpu_memory="10GiB", max_stretch=1.1, deadline=timedelta(hours=6))
        def train(x: int) -> int:
            return x

        train.expand_kwargs([{"x": 1}, {"x": 2}])
    return dag


def overridden() -> DAG:
    with DAG("d", schedule=None) as dag:

        @task.eaco(gpus=1, gpu_memory="10GiB", max_stretch=1.1)
        def train(x: int) -> int:
            return x

        train.override(gpus=2, deadline=timedelta(hours=6), retries=3).expand(x=[1])
    return dag


def in_a_group() -> DAG:
    with DAG("d", schedule=None) as dag:

        @task_group
        def group() -> None:
            @task.eaco(gpus=2, gpu_memory="10GiB", max_stretch=1.1, deadline=timedelta(hours=6))
            def train() -> None: ...

            train()

        group()
    return dag


WAYS = [called, expanded, prepared_and_expanded, expanded_by_dicts, overridden, in_a_group]
REQUEST = {"gpus": 2, "gpu_memory": "10240MiB", "max_stretch": 1.1, "deadline": 21600.0}
ROUTES: dict[str, tuple[str, str | None, str]] = {
    "the only executor": (OURS, None, "eaco"),
    "the default of two": (f"{OURS},LocalExecutor", None, "eaco"),
    "beside another": (BESIDE, "EacoExecutor", "eaco"),
    "by its full path": (
        "LocalExecutor,airflow_provider_eaco.provider.executor.EacoExecutor",
        "EacoExecutor",
        "eaco",
    ),
    "under an alias": (f"LocalExecutor,gpu:{OURS}", "gpu", "eaco"),
    "switched off": ("LocalExecutor", None, "default_pool"),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(("executors", "executor", "pool"), ROUTES.values(), ids=list(ROUTES))
def test_every_way_to_create_a_task_carries_the_request(
    way: Callable[[], DAG], executors: str, executor: str | None, pool: str, configure: Callable[..., None]
) -> None:
    """Pool, executor and request are set alike for called, mapped, prepared and overridden tasks."""
    configure(executors)
    created = only_task(way())
    assert (created.executor, created.pool) == (executor, pool)
    assert created.executor_config == {"eaco": REQUEST}


@pytest.mark.parametrize("way", WAYS)
def test_the_request_survives_airflow_s_serialisation(
    way: Callable[[], DAG], configure: Callable[..., None]
) -> None:
    """What the scheduler reads from the stored DAG is what the author wrote."""
    configure(BESIDE)
    stored = DagSerialization.from_dict(DagSerialization.to_dict(way()))
    (created,) = stored.tasks
    assert created.executor_config == {"eaco": REQUEST}
    assert (created.executor, created.pool) == ("EacoExecutor", "eaco")


def test_what_the_author_names_wins(configure: Callable[..., None]) -> None:
    """An explicit pool, executor or config stays; the request is added to the config."""
    configure(BESIDE)
    with DAG("d", schedule=None) as dag:

        @task.eaco(pool="mine", executor="LocalExecutor", executor_config={"k": 1})
        def train() -> None: ...

        train()
    created = only_task(dag)
    assert (created.pool, created.executor) == ("mine", "LocalExecutor")
    assert created.executor_config == {"k": 1, "eaco": {"gpus": 1}}


def test_default_args_are_explicit_too(configure: Callable[..., None]) -> None:
    """Pool and config of ``default_args`` are the author's word."""
    configure(BESIDE)
    defaults = {"pool": "mine", "executor_config": {"k": 1}, "retries": 2}
    with DAG("d", schedule=None, default_args=defaults) as dag:

        @task.eaco
        def train() -> None: ...

        train()
        train.override(task_id="mapped").partial().expand_kwargs([{}])
    for created in dag.tasks:
        assert (created.pool, created.retries) == ("mine", 2)
        assert created.executor_config == {"k": 1, "eaco": {"gpus": 1}}


def test_one_function_makes_many_tasks(configure: Callable[..., None]) -> None:
    """Overriding leaves the decorated function as it was."""
    configure(OURS)
    with DAG("d", schedule=None) as dag:

        @task.eaco(gpus=1)
        def train() -> None: ...

        train.override(task_id="big", gpus=8)()
        train()
    assert dag.get_task("big").executor_config == {"eaco": {"gpus": 8}}
    assert dag.get_task("train").executor_config == {"eaco": {"gpus": 1}}


def test_the_first_declared_pool_is_the_default(configure: Callable[..., None]) -> None:
    """With other GPU pools declared, tasks go to the first of them; unreadable pools do not stop parsing."""
    configure(OURS, '{"gpu-a": {}, "gpu-b": {}}')
    assert only_task(called()).pool == "gpu-a"
    configure(OURS, "no JSON")
    assert only_task(called()).pool == "eaco"


def test_no_gpus_is_an_ordinary_task(configure: Callable[..., None]) -> None:
    """``gpus=0`` leaves pool and executor to Airflow."""
    configure(BESIDE)
    with DAG("d", schedule=None) as dag:

        @task.eaco(gpus=0)
        def prepare() -> None: ...

        prepare()
    created = only_task(dag)
    assert (created.executor, created.pool) == (None, "default_pool")


def test_setup_and_teardown_stay_what_they_are(configure: Callable[..., None]) -> None:
    """The decorator works under Airflow's ``@setup`` and ``@teardown``."""
    configure(OURS)
    with DAG("d", schedule=None) as dag:

        @setup
        @task.eaco(gpus=1)
        def before() -> None: ...

        @teardown
        @task.eaco(gpus=1)
        def after() -> None: ...

        before() >> after()
    assert dag.get_task("before").is_setup
    assert dag.get_task("after").is_teardown


@pytest.mark.parametrize(
    ("arguments", "argument"),
    [({"gpus": -1}, "gpus"), ({"gpu_memory": "16Gi"}, "gpu_memory"), ({"share": 0.6}, "share")],
)
def test_c15_a_wrong_request_is_refused_at_the_decorator(arguments: dict[str, Any], argument: str) -> None:
    """The DAG file fails to import with the argument's name, before any task exists."""
    with pytest.raises(InvalidRequestError) as caught:

        @task.eaco(**arguments)
        def train() -> None: ...

    assert caught.value.argument == argument


def test_c15_a_wrong_override_is_refused_too() -> None:
    """``override`` checks the request like the decorator."""

    @task.eaco
    def train() -> None: ...

    with pytest.raises(InvalidRequestError, match="gpus"):
        train.override(gpus=17)


def test_a_misspelt_argument_is_refused(configure: Callable[..., None]) -> None:
    """What is neither ours nor an operator's argument fails when the task is created."""
    configure(OURS)
    with DAG("d", schedule=None):

        @task.eaco(gpu_mem="1GiB")
        def train() -> None: ...

        with pytest.raises(TypeError, match="gpu_mem"):
            train()


@pytest.mark.parametrize("argument", ["nodes", "num_nodes", "nnodes"])
def test_a_job_of_several_nodes_is_refused_at_the_decorator(argument: str) -> None:
    """Not as an argument that Airflow's operators do not have: with the reason."""
    with pytest.raises(InvalidRequestError, match=f"^{argument}: .*one job runs on one node"):
        task.eaco(gpus=8, **{argument: 2})(lambda: None)


def test_only_named_arguments_are_taken() -> None:
    """A positional argument that is no function is refused with the right way to write it."""
    with pytest.raises(TypeError, match="named arguments"):
        task.eaco(2)


def test_the_function_runs_with_its_arguments(configure: Callable[..., None]) -> None:
    """The operator calls the function as ``@task`` does."""
    configure("LocalExecutor")
    with DAG("d", schedule=None) as dag:

        @task.eaco(gpus=1)
        def add(x: int, y: int = 2) -> int:
            return x + y

        add(1)
    assert only_task(dag).execute({}) == 3
