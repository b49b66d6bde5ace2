"""Who may see and who may steer: Airflow's own dependencies and auth manager, and nothing beside them.

A request without a user ends with 401, one without the permission with 403, before any code of a route runs.
Jobs of DAGs that a user may not read are shown without their names.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Any

from airflow.api_fastapi.app import get_auth_manager
from airflow.api_fastapi.auth.managers.base_auth_manager import ResourceMethod
from airflow.api_fastapi.auth.managers.models.resource_details import AccessView, DagAccessEntity
from airflow.api_fastapi.core_api.security import (
    GetUserDep,
    requires_access_dag,
    requires_access_pool,
    requires_access_view,
)
from airflow.models.dag import DagModel
from fastapi import Depends
from sqlalchemy import select

from airflow_provider_eaco.provider.compat import own_session

User = GetUserDep

CanSee = Depends(requires_access_view(AccessView.CLUSTER_ACTIVITY))
"""The cluster, its queue, decisions, profiles and energy: whoever may see Airflow's cluster activity."""

CanSeeTasks = Depends(requires_access_dag("GET", DagAccessEntity.TASK_INSTANCE))
"""The jobs of one DAG: whoever may read its task instances. For routes with the parameter ``dag_id``."""

CanSteer = Depends(requires_access_pool("PUT"))
"""Nodes and profiles: whoever may change pools."""

# Below the number of variables that every supported database takes in one statement.
_CHUNK = 500


def may_steer(user: Any) -> bool:
    """Tell whether :data:`CanSteer` would let this user pass."""
    return bool(get_auth_manager().is_authorized_pool(method="PUT", user=user))


def reads_every_dag(user: Any) -> bool:
    """Tell whether there is no DAG that the user may not read."""
    with own_session() as session:
        known = set(session.scalars(select(DagModel.dag_id)))
    return known <= get_auth_manager().get_authorized_dag_ids(user=user, method="GET")


def permitted_dags(user: Any, dag_ids: Iterable[str], method: ResourceMethod) -> set[str]:
    """Return those of the DAGs on whose task instances the user may use the method."""
    wanted = sorted(set(dag_ids))
    of_team: dict[str | None, set[str]] = defaultdict(set)
    for start in range(0, len(wanted), _CHUNK):
        chunk = wanted[start : start + _CHUNK]
        teams = DagModel.get_dag_id_to_team_name_mapping(chunk)
        for dag_id in chunk:
            of_team[teams.get(dag_id)].add(dag_id)
    manager = get_auth_manager()
    permitted: set[str] = set()
    for team, ids in of_team.items():
        permitted |= manager.filter_authorized_dag_ids(dag_ids=ids, user=user, method=method, team_name=team)
    return permitted
