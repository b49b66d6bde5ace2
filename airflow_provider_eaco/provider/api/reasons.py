"""Reasons as the API carries them: code, sentence and remedy, word for word those of CLI and audit log."""

from __future__ import annotations

from collections.abc import Iterable

from pydantic import BaseModel

from airflow_provider_eaco.provider.explain import ShownReason


class ReasonShown(BaseModel):
    """Why a job waits. ``sentence`` is ``null`` where you may not read its DAG: it may name other tasks."""

    code: str
    sentence: str | None
    what_would_change_it: str


def shown_reasons(reasons: Iterable[ShownReason], *, hidden: bool) -> list[ReasonShown]:
    """Return the reasons, most severe first."""
    return [
        ReasonShown(
            code=each.code,
            sentence=None if hidden else each.sentence,
            what_would_change_it=each.remedy,
        )
        for each in reasons
    ]
