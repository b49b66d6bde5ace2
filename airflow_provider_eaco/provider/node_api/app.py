"""The web application for nodes: their credential first, then the size of what they send, then each value.

Airflow's own sign-in plays no part here: a node's credential opens these routes for its own name and
nothing else, and nothing else opens them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from fastapi import FastAPI, Request
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import JSONResponse
from pydantic import BaseModel, TypeAdapter, ValidationError

from airflow_provider_eaco.core.model.errors import StoreUnavailableError
from airflow_provider_eaco.core.model.placement import Placement
from airflow_provider_eaco.core.node_runs import FORMATS, NodeAnswer, NodeRefusedError, RunClaim
from airflow_provider_eaco.provider.node_api.door import NodeDoor
from airflow_provider_eaco.provider.node_api.models import REPORTS, STARTS
from airflow_provider_eaco.provider.node_api.observed_models import OBSERVED
from airflow_provider_eaco.provider.node_settings import is_node_name

log = logging.getLogger(__name__)

MAX_BODY_BYTES = 2**20
_MAX_CREDENTIAL_CHARACTERS = 256
_Model = TypeVar("_Model", bound=BaseModel)


class _RefusedError(Exception):
    """The request ends here with this status; ``text`` tells nothing that the sender may not know."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


def create_app(door: NodeDoor) -> FastAPI:
    """Return the application."""
    app = FastAPI(title="EaCO nodes", openapi_url=None, docs_url=None, redoc_url=None)

    @app.post("/{node}/report")
    async def report(node: str, request: Request) -> JSONResponse:
        return await _answer(
            door, node, request, REPORTS, lambda sent: _told(sent.v, door, door.take(sent.as_report(node)))
        )

    @app.post("/{node}/starts")
    async def start(node: str, request: Request) -> JSONResponse:
        return await _answer(
            door,
            node,
            request,
            STARTS,
            lambda sent: _claim(sent.v, door.claim(node, sent.machine, sent.token, sent.job_id)),
        )

    @app.post("/{node}/observed")
    async def observed(node: str, request: Request) -> JSONResponse:
        return await _answer(
            door,
            node,
            request,
            OBSERVED,
            lambda sent: {"v": sent.v, "not_observed": sorted(door.observe(sent.as_report(node)))},
        )

    return app


async def _answer(
    door: NodeDoor,
    node: str,
    request: Request,
    model: TypeAdapter[_Model],
    act: Callable[[_Model], dict[str, Any]],
) -> JSONResponse:
    try:
        await _check_credential(door, node, request)
        sent = _parsed(model, await _body(request))
        return JSONResponse(await run_in_threadpool(act, sent))
    except _RefusedError as refused:
        log.warning("A node's request is refused: node=%.80r status=%s why=%s", node, refused.status, refused)
        return JSONResponse({"detail": str(refused)}, status_code=refused.status)
    except NodeRefusedError as refused:
        log.warning("A node's request is refused: node=%s why=%s", node, refused)
        return JSONResponse({"detail": str(refused)}, status_code=409)
    except StoreUnavailableError as error:
        log.warning("A node's request has to wait: node=%.80r error=%s", node, error)
        return JSONResponse({"detail": "the provider's tables are out of reach; try again"}, status_code=503)


async def _check_credential(door: NodeDoor, node: str, request: Request) -> None:
    scheme, _, credential = request.headers.get("authorization", "").partition(" ")
    if scheme.lower() != "bearer" or not 0 < len(credential) <= _MAX_CREDENTIAL_CHARACTERS:
        raise _RefusedError(401, "a node sends its credential as Authorization: Bearer CREDENTIAL")
    if not is_node_name(node) or not await run_in_threadpool(door.accepts, node, credential):
        raise _RefusedError(401, "this credential does not speak for this node")


async def _body(request: Request) -> bytes:
    """Return what was sent, and stop reading as soon as it is too much, whatever its header says."""
    told = request.headers.get("content-length", "0")
    body = bytearray()
    if told.isdecimal() and int(told[:20]) <= MAX_BODY_BYTES:
        async for chunk in request.stream():
            body += chunk
            if len(body) > MAX_BODY_BYTES:
                break
        else:
            return bytes(body)
    raise _RefusedError(413, f"a request has at most {MAX_BODY_BYTES} bytes")


def _parsed(model: TypeAdapter[_Model], body: bytes) -> _Model:
    try:
        return model.validate_json(body)
    except ValidationError as error:
        # Where, and not what: the sender's text has no business in our log.
        places = sorted({".".join(map(str, each["loc"]))[:80] for each in error.errors()})
        formats = ", ".join(map(str, FORMATS))
        raise _RefusedError(
            422, f"not a request of the formats {formats}: {', '.join(places[:5]) or 'v'}"
        ) from None


def _claim(version: int, claim: RunClaim | None) -> dict[str, Any]:
    if claim is None:
        return {"v": version, "start": False}
    told: dict[str, Any] = {
        "family": claim.family,
        "gpu_uuids": list(claim.placement.gpu_uuids),
        "alone": claim.alone,
        "memory_margin_mib": claim.memory_margin_mib,
    }
    if version > 2:
        told["power_limit_w"] = claim.power_limit_w
    return {"v": version, "start": True, **told}


def _told(version: int, door: NodeDoor, answer: NodeAnswer) -> dict[str, Any]:
    told = {
        "v": version,
        # A node that fell back to an older format comes back by this.
        "newest": FORMATS[-1],
        "interval_s": door.interval_s,
        "runs": [
            {
                "job_id": run.job_id,
                "token": run.token,
                "family": run.family,
                "gpu_uuids": list(run.placement.gpu_uuids),
                "gpu_memory_mib": run.memory_mib,
                "granted_s": run.granted_s,
                "state": run.state.value,
                "stop": run.stop,
                "grace_s": run.grace_s,
            }
            for run in answer.runs
        ],
    }
    if version > 2:
        told["limits"] = None if answer.limits_w is None else _limits(answer.limits_w)
    return told


def _limits(limits_w: Mapping[Placement, float]) -> list[dict[str, Any]]:
    return [{"gpu_uuids": list(place.gpu_uuids), "limit_w": watts} for place, watts in limits_w.items()]
