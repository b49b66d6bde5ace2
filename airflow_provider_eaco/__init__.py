"""Energy-aware ordering, admission and GPU sharing for Apache Airflow training tasks.

The public names are resolved on first use: importing the package imports no Airflow.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from airflow_provider_eaco.core.model.errors import InvalidRequestError
    from airflow_provider_eaco.provider.executor import EacoExecutor
    from airflow_provider_eaco.provider.request import gpu_request
    from airflow_provider_eaco.provider.training import TrainingRun, training_run

__version__ = "0.1.0"

__all__ = [
    "EacoExecutor",
    "InvalidRequestError",
    "TrainingRun",
    "__version__",
    "gpu_request",
    "training_run",
]

_HOMES = {
    "EacoExecutor": "airflow_provider_eaco.provider.executor",
    "InvalidRequestError": "airflow_provider_eaco.core.model.errors",
    "TrainingRun": "airflow_provider_eaco.provider.training",
    "gpu_request": "airflow_provider_eaco.provider.request",
    "training_run": "airflow_provider_eaco.provider.training",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
