"""Rules of the configuration that give GPU requests to tasks whose DAGs name none.

Airflow loads this module through the entry point group ``airflow.policy``.
"""

from __future__ import annotations
