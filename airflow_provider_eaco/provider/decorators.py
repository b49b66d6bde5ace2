"""``@task.eaco``: a Python task that asks for GPUs.

The decorator writes pool, executor and ``executor_config`` when a task is created, so that called, mapped
(``expand``), prepared (``partial``) and overridden tasks are treated alike.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, cast

import attr
from airflow.providers.standard.operators.python import PythonOperator
from airflow.sdk.bases.decorator import DecoratedOperator, TaskDecorator, _TaskDecorator
from airflow.sdk.bases.operator import get_merged_defaults
from airflow.sdk.definitions._internal.contextmanager import DagContext, TaskGroupContext

from airflow_provider_eaco.provider.request import ARGUMENTS, NOT_OFFERED, gpu_request_from
from airflow_provider_eaco.provider.routing import configured_route


class EacoDecoratedOperator(DecoratedOperator, PythonOperator):
    """Runs the decorated function in the process that holds the GPUs, as ``@task`` does."""

    template_fields: Sequence[str] = ("templates_dict", "op_args", "op_kwargs")
    template_fields_renderers: ClassVar[dict[str, str]] = {
        "templates_dict": "json",
        "op_args": "py",
        "op_kwargs": "py",
    }
    custom_operator_name: str = "@task.eaco"

    def __init__(
        self,
        *,
        python_callable: Callable[..., Any],
        op_args: Sequence[Any] = (),
        op_kwargs: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        shared: dict[str, Any] = {
            "python_callable": python_callable,
            "op_args": op_args,
            "op_kwargs": op_kwargs or {},
        }
        super().__init__(kwargs_to_upstream=shared, **shared, **kwargs)

    def execute(self, context: Any) -> Any:
        """Run the function; one that runs out of a shared GPU's memory comes back and runs alone (C38)."""
        try:
            return super().execute(context)
        except Exception as error:
            from airflow_provider_eaco.provider.training import leave_if_out_of_memory

            leave_if_out_of_memory(error)
            raise


class _EacoTaskDecorator(_TaskDecorator[Any, Any, EacoDecoratedOperator]):
    """Airflow's decorator object, which keeps the request among its arguments until a task is created.

    Airflow offers no public base for this; a mapped task never calls the operator's constructor, so the
    request cannot be handled there.
    """

    def __attrs_post_init__(self) -> None:
        self.decorator_name = "task.eaco"
        # Says at the line of the decorator what is wrong with the request.
        gpu_request_from(_request_arguments(self.kwargs))
        super().__attrs_post_init__()  # type: ignore[no-untyped-call]  # Airflow leaves it untyped

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return super(_EacoTaskDecorator, self._settled()).__call__(*args, **kwargs)

    def _expand(self, expand_input: Any, *, strict: bool) -> Any:
        return super(_EacoTaskDecorator, self._settled())._expand(expand_input, strict=strict)

    def _settled(self) -> _EacoTaskDecorator:
        """Return the decorator with the request turned into what Airflow's operators understand."""
        request = _request_arguments(self.kwargs)
        kwargs = {name: value for name, value in self.kwargs.items() if name not in ARGUMENTS}
        given = {**_defaults(kwargs), **kwargs}
        route = configured_route()
        # gpus=0 is a task without GPUs: it goes wherever Airflow's defaults send it.
        if route is not None and request.get("gpus") != 0:
            kwargs["pool"] = given.get("pool") or route.pool
            kwargs["executor"] = given.get("executor") or route.executor
        kwargs["executor_config"] = gpu_request_from(request, given.get("executor_config"))
        settled = attr.evolve(self, kwargs=kwargs)
        settled.is_setup, settled.is_teardown = self.is_setup, self.is_teardown
        return settled


def eaco_task(
    python_callable: Callable[..., Any] | None = None,
    multiple_outputs: bool | None = None,
    **kwargs: Any,
) -> TaskDecorator:
    """Turn a function into a task that asks for GPUs; used as ``@task.eaco`` or ``@task.eaco(gpus=2, ...)``.

    Takes the arguments of :func:`~airflow_provider_eaco.gpu_request` and those of every operator. The pool is
    the first one of ``[eaco] pools`` (``eaco``) unless ``pool`` is given, also in ``default_args``. The
    executor is named only where EacoExecutor is configured and not Airflow's default one; where it is not
    configured at all, pool and executor stay as Airflow's defaults are, and the task runs as an ordinary one.

    :raises InvalidRequestError: for a request that no cluster could read; it names the argument.
    """

    def decorate(function: Callable[..., Any]) -> _EacoTaskDecorator:
        return _EacoTaskDecorator(
            function=function,
            operator_class=EacoDecoratedOperator,
            multiple_outputs=cast("bool", attr.NOTHING if multiple_outputs is None else multiple_outputs),
            kwargs=dict(kwargs),
        )

    if python_callable is None:
        return cast("TaskDecorator", decorate)
    if not callable(python_callable):
        raise TypeError("@task.eaco takes named arguments only, such as @task.eaco(gpus=2)")
    return cast("TaskDecorator", decorate(python_callable))


def _request_arguments(kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Return what is said about GPUs, what is not offered among it: that is refused with its reason."""
    return {name: value for name, value in kwargs.items() if name in ARGUMENTS or name in NOT_OFFERED}


def _defaults(kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the ``default_args`` that the DAG, the task group and the task itself would apply."""
    dag = kwargs.get("dag") or DagContext.get_current()
    group = kwargs.get("task_group") or (TaskGroupContext.get_current(dag) if dag else None)
    merged, _ = get_merged_defaults(
        dag=dag, task_group=group, task_params=None, task_default_args=kwargs.get("default_args")
    )
    return dict(merged)
