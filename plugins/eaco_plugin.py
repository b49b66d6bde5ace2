"""Drop-in for a source checkout: link this file into Airflow's plugins folder to try it uninstalled.

It puts the checkout on the module path and applies ``[eaco] rules``. An installed provider needs no plugin;
beside one, this file changes nothing. What Airflow takes only from installed providers stays away:
``@task.eaco`` (use ``executor_config=gpu_request(...)``), the ``airflow eaco`` commands, the page, and the
tables, for which ``[database] external_db_managers`` has to name
``airflow_provider_eaco.provider.db_manager.EacoDBManager``.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from airflow.plugins_manager import AirflowPlugin
from airflow.settings import get_policy_plugin_manager

CHECKOUT = Path(__file__).resolve().parents[1]


class EacoCheckoutPlugin(AirflowPlugin):
    """Makes the checkout importable and registers its cluster policy, once."""

    name = "eaco_checkout"

    @classmethod
    def on_load(cls, *args: Any, **kwargs: Any) -> None:
        """Register the rules unless the installed provider has done so."""
        if (CHECKOUT / "airflow_provider_eaco").is_dir() and str(CHECKOUT) not in sys.path:
            sys.path.append(str(CHECKOUT))
        from airflow_provider_eaco.provider import rules  # noqa: PLC0415 - found on the path added above

        manager = get_policy_plugin_manager()
        if not manager.is_registered(rules):
            manager.register(rules)
