"""The provider's old rows in ``airflow db clean``.

Airflow keeps the list of tables that it cleans in a module and has no way for a provider to declare more. Its
command line calls registered functions before each command runs; there ours are added, and only in a process
that has loaded the clean-up anyway.
"""

from __future__ import annotations

import sys
from functools import cache
from typing import Any


@cache
def take_part_in_db_clean() -> None:
    """Make ``airflow db clean`` and its archive commands know the provider's tables, in this process.

    To be called where the command line asks the provider for its commands; calling it again does nothing.
    """
    from airflow.utils.cli_action_loggers import register_pre_exec_callback

    register_pre_exec_callback(_add_tables)  # type: ignore[no-untyped-call] # Airflow gives no annotations


def _add_tables(**_command: object) -> None:
    cleanup: Any = sys.modules.get("airflow.utils.db_cleanup")
    if cleanup is None:
        return
    from airflow_provider_eaco.store.schema import HISTORY

    for table, since, dag_id in HISTORY:
        known = cleanup._TableConfig(table.name, since, dag_id_column_name=dag_id)  # noqa: SLF001 # the only way in
        cleanup.config_dict.setdefault(table.name, known)
