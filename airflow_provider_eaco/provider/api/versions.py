"""Answers that are asked for every few seconds: sent again only when something in them has changed."""

from __future__ import annotations

from hashlib import blake2b

from fastapi import Request, Response
from pydantic import BaseModel


def answer_if_changed(request: Request, body: BaseModel, compared: BaseModel | None = None) -> Response:
    """Return the body as JSON with an ``ETag``, or 304 if the request names that one.

    The instant ``now_s`` is no change: whoever gets a 304 knows how long ago he asked.

    :param compared: the body in another form, in which only what counts as a change is another.
    """
    unchanging = (compared or body).model_dump_json(exclude={"now_s"})
    etag = f'W/"{blake2b(unchanging.encode(), digest_size=12).hexdigest()}"'
    headers = {"ETag": etag, "Cache-Control": "private, no-cache"}
    if etag in request.headers.get("if-none-match", ""):
        return Response(status_code=304, headers=headers)
    return Response(body.model_dump_json(), media_type="application/json", headers=headers)
