"""One form for every error: ``{"error": {"code", "message"}}``, with a code that programs can rely on."""

from __future__ import annotations

import logging
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel
from sqlalchemy.exc import SQLAlchemyError
from starlette.exceptions import HTTPException

from airflow_provider_eaco.core.model.errors import EacoError, InvalidSettingError, StoreUnavailableError

log = logging.getLogger(__name__)

CODES = {
    400: "invalid_request",
    401: "not_authenticated",
    403: "not_permitted",
    404: "not_found",
    405: "method_not_allowed",
    409: "conflict",
    503: "store_unavailable",
}
INTERNAL = "internal_error"
MISCONFIGURED = "misconfigured"


class ErrorBody(BaseModel):
    """What went wrong: a stable code, and a sentence that says what to do."""

    code: str
    message: str


class ErrorAnswer(BaseModel):
    """The body of every answer with an error status."""

    error: ErrorBody


RESPONSES: dict[int | str, dict[str, Any]] = {
    status: {"model": ErrorAnswer, "description": CODES[status].replace("_", " ")}
    for status in (400, 401, 403, 404, 503)
}
"""The errors that every route may answer with."""

CONFLICT: dict[int | str, dict[str, Any]] = {409: {"model": ErrorAnswer, "description": CODES[409]}}
"""What a changing route answers where the thing is no longer in a state to be changed."""


def install_handlers(app: FastAPI) -> None:
    """Let every error of the application leave in the one form."""
    app.add_exception_handler(HTTPException, _of_http)
    app.add_exception_handler(RequestValidationError, _of_validation)
    app.add_exception_handler(StoreUnavailableError, _of_store)
    app.add_exception_handler(SQLAlchemyError, _of_store)
    app.add_exception_handler(InvalidSettingError, _of_setting)
    app.add_exception_handler(EacoError, _of_ours)
    app.add_exception_handler(Exception, _of_bug)


def _answer(status: int, code: str, message: str, headers: Any = None) -> JSONResponse:
    body = ErrorAnswer(error=ErrorBody(code=code, message=message))
    return JSONResponse(body.model_dump(), status, headers=headers)


async def _of_http(_: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, HTTPException)  # noqa: S101 - registered for nothing else
    code = CODES.get(error.status_code, f"http_{error.status_code}")
    return _answer(error.status_code, code, str(error.detail), error.headers)


async def _of_validation(_: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, RequestValidationError)  # noqa: S101 - registered for nothing else
    problems = [f"{'.'.join(map(str, each['loc'][1:]))}: {each['msg']}" for each in error.errors()]
    return _answer(400, CODES[400], "; ".join(problems))


async def _of_store(request: Request, error: Exception) -> JSONResponse:
    if isinstance(error, StoreUnavailableError):
        return _answer(503, CODES[503], " ".join(str(error).split()))
    # A driver's words carry statements with their values; those stay in the server's log.
    log.error("%s %s: the database failed", request.method, request.url.path, exc_info=error)
    return _answer(503, CODES[503], "Airflow's database cannot be read now; the server's log says why")


async def _of_setting(_: Request, error: Exception) -> JSONResponse:
    return _answer(500, MISCONFIGURED, str(error))


async def _of_ours(_: Request, error: Exception) -> JSONResponse:
    return _answer(400, CODES[400], str(error))


async def _of_bug(request: Request, error: Exception) -> JSONResponse:
    # What failed stands in the server's log, not in the answer.
    log.error("%s %s failed", request.method, request.url.path, exc_info=error)
    return _answer(500, INTERNAL, "the server failed; its log says why")
