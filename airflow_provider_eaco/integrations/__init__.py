"""What people train with, joined to :func:`~airflow_provider_eaco.training_run`.

Each name is resolved on first use, and only then is its library imported: this package itself imports none.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from airflow_provider_eaco.integrations.libraries import MissingLibraryError
    from airflow_provider_eaco.integrations.lightgbm import LightGBMCallback
    from airflow_provider_eaco.integrations.lightning import LightningCallback
    from airflow_provider_eaco.integrations.pytorch import TorchCheckpoints
    from airflow_provider_eaco.integrations.transformers import TransformersCallback
    from airflow_provider_eaco.integrations.xgboost import XGBoostCallback

__all__ = [
    "LightGBMCallback",
    "LightningCallback",
    "MissingLibraryError",
    "TorchCheckpoints",
    "TransformersCallback",
    "XGBoostCallback",
]

_HOMES = {
    "LightGBMCallback": "lightgbm",
    "LightningCallback": "lightning",
    "MissingLibraryError": "libraries",
    "TorchCheckpoints": "pytorch",
    "TransformersCallback": "transformers",
    "XGBoostCallback": "xgboost",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
