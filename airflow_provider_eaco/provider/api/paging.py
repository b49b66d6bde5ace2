"""Lists that come page by page."""

from __future__ import annotations

from typing import Annotated, Generic, TypeVar

from fastapi import Query
from pydantic import BaseModel, Field

MAX_LIMIT = 500

Limit = Annotated[int, Query(ge=1, le=MAX_LIMIT, description="how many at most")]
Offset = Annotated[
    int, Query(ge=0, le=2**31 - 1, description="how many of the list are left out before them")
]

_Item = TypeVar("_Item")


class Page(BaseModel, Generic[_Item]):
    """Some items of a list of ``total``, as of ``now_s`` on the store's clock."""

    now_s: float
    items: list[_Item]
    total: int = Field(description="length of the whole list")
    limit: int
    offset: int
