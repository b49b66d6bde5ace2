"""What Airflow's providers manager asks an installed provider for.

Pure data and no import of Airflow: this runs before Airflow has read its configuration.
"""

from __future__ import annotations

from typing import Any

from airflow_provider_eaco.provider.options import OPTIONS, SECTION, VERSION_ADDED, Option


def get_provider_info() -> dict[str, Any]:
    """Return the provider's description: configuration, executor, decorator, commands and tables."""
    return {
        "package-name": "airflow-provider-eaco",
        "name": "EaCO",
        "description": "Orders training tasks and lets them share GPUs where that saves energy.",
        "executors": ["airflow_provider_eaco.provider.executor.EacoExecutor"],
        "task-decorators": [
            {"name": "eaco", "class-name": "airflow_provider_eaco.provider.decorators.eaco_task"},
        ],
        "cli": ["airflow_provider_eaco.provider.cli.get_eaco_cli_commands"],
        "db-managers": ["airflow_provider_eaco.provider.db_manager.EacoDBManager"],
        "config": {
            SECTION: {
                "description": "Admission, ordering and sharing of GPUs for training tasks.",
                "options": {option.name: _described(option) for option in OPTIONS},
            }
        },
    }


def _described(option: Option) -> dict[str, Any]:
    return {
        "description": option.description,
        "version_added": VERSION_ADDED,
        "type": option.kind,
        "example": option.example,
        "default": option.default,
    }
