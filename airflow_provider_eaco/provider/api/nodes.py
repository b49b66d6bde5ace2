"""Drain and undrain of nodes."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, HTTPException, Path
from pydantic import BaseModel

from airflow_provider_eaco.provider.api.access import CanSee, CanSteer, User
from airflow_provider_eaco.provider.api.audit_log import note_change
from airflow_provider_eaco.provider.api.stored import the_store

router = APIRouter(tags=["nodes"], dependencies=[CanSee, CanSteer])

NodeName = Annotated[str, Path(min_length=1, max_length=250)]


class Drained(BaseModel):
    """A node after a change."""

    node: str
    draining: bool


@router.post("/nodes/{node}/drain", response_model=Drained)
def drain(user: User, node: NodeName) -> Drained:
    """Let nothing new start on a node; what runs there goes on. Needs to change pools."""
    return _set_draining(user, node, draining=True)


@router.post("/nodes/{node}/undrain", response_model=Drained)
def undrain(user: User, node: NodeName) -> Drained:
    """Let new work start on a node again. Needs to change pools."""
    return _set_draining(user, node, draining=False)


def _set_draining(user: User, node: str, *, draining: bool) -> Drained:
    ledger = the_store().ledger
    if node not in {known.name for known in ledger.view().nodes}:
        raise HTTPException(404, f"no node is named {node!r}")
    note_change(user, "eaco user drain" if draining else "eaco user undrain", node)
    if not ledger.set_draining(node, draining):
        raise HTTPException(404, f"node {node!r} has gone")
    return Drained(node=node, draining=draining)
