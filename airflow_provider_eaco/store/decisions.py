"""Decisions and events as rows: one per kind of job and answer, one per admitted job, written on a change.

A row stands (``ended_at`` is NULL) until a plan of its pool gives another answer or lacks its subject. Its
numbers follow the newest plan; its beginning, ``decided_at``, does not.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from hashlib import sha256
from typing import Any

from sqlalchemy import bindparam, insert, select, update
from sqlalchemy.engine import Connection
from sqlalchemy.exc import IntegrityError

from airflow_provider_eaco.core.model.decision import (
    AdmissionDecision,
    Finding,
    Reason,
    SetPrediction,
    Verdict,
)
from airflow_provider_eaco.core.model.instruction import KindDecision, Plan
from airflow_provider_eaco.core.model.job import JobKind
from airflow_provider_eaco.core.model.placement import Placement
from airflow_provider_eaco.core.ports import Explain
from airflow_provider_eaco.store.alternatives import alternatives_of, plain_alternatives
from airflow_provider_eaco.store.columns import canonical_json
from airflow_provider_eaco.store.schema import decision as decision_table
from airflow_provider_eaco.store.schema import event as event_table
from airflow_provider_eaco.store.schema import job as job_table
from airflow_provider_eaco.store.schema import queue as queue_table
from airflow_provider_eaco.store.session import Database, upsert

_NUMBERS = ("findings", "co_residents", "prediction")
_ANSWER = ("verdict", "reason", "node", "gpu_uuids")


@dataclass(frozen=True, slots=True)
class StoredDecision:
    """A decision with the time for which it stood; ``ended_s`` is ``None`` while it stands.

    ``family`` and ``gpus`` are what is asked for.
    ``job_id`` is set where one job was admitted, and ``None`` where the answer was that of a whole kind, or,
    where its jobs were told apart, of a part of it; ``subject`` then names kind and answer.
    """

    decision_id: int
    pool: str
    subject: str
    kind_id: str
    job_id: str | None
    family: str
    gpus: int
    decision: AdmissionDecision
    decided_s: float
    ended_s: float | None


@dataclass(frozen=True, slots=True)
class StoredEvent:
    """What happened to one job at one instant."""

    job_id: str
    event: str
    text: str
    at_s: float


class SqlDecisionLog:
    """The decision log in the database."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def record(self, plan: Plan, explain: Explain | None = None) -> Sequence[KindDecision]:
        """Store what changed since the pool's last plan, and the order of its queue; return what changed.

        Alternatives are those of the instant from which an answer stands. When another planner records the
        same change at the same time, one of the two returns nothing.
        """
        try:
            with self._database.writing() as connection:
                _save_order(connection, plan)
                return _record(connection, plan, explain)
        except IntegrityError:
            return ()

    def record_event(self, job_id: str, event: str, text: str, at_s: float) -> None:
        """Store what happened to one job (trial, confirmed, undone, launched, released), for its story."""
        dag_id = select(job_table.c.dag_id).where(job_table.c.job_id == job_id).scalar_subquery()
        row = insert(event_table).values(
            job_id=job_id, dag_id=dag_id, event=event, text=text, happened_at=at_s
        )
        with self._database.writing() as connection:
            connection.execute(row)


def _record(connection: Connection, plan: Plan, explain: Explain | None) -> list[KindDecision]:
    standing = {
        row.subject: row
        for row in connection.execute(
            select(decision_table).where(
                decision_table.c.pool == plan.pool, decision_table.c.ended_at.is_(None)
            )
        )
    }
    answers: dict[str, KindDecision] = {}
    for item in plan.decisions:
        answers.setdefault(_subject(item), item)
    rows = {subject: _row(plan, subject, item) for subject, item in answers.items()}
    changed = [subject for subject, row in rows.items() if not _same(standing.get(subject), row, _ANSWER)]
    ended = [
        standing[subject].decision_id
        for subject in standing
        if subject not in rows or not _same(standing[subject], rows[subject], _ANSWER)
    ]
    _end(connection, ended, plan.now_s)
    _renew_numbers(
        connection, standing, {subject: rows[subject] for subject in rows if subject not in changed}
    )
    if changed:
        dag_ids = _dag_ids(connection, [rows[subject]["job_id"] for subject in changed])
        connection.execute(
            insert(decision_table),
            [
                {
                    **rows[subject],
                    "dag_id": dag_ids.get(rows[subject]["job_id"]),
                    "alternatives": [] if explain is None else plain_alternatives(explain(answers[subject])),
                }
                for subject in changed
            ],
        )
    return [answers[subject] for subject in changed]


def _dag_ids(connection: Connection, job_ids: Sequence[str | None]) -> dict[str, str]:
    admitted = [job_id for job_id in job_ids if job_id is not None]
    query = select(job_table.c.job_id, job_table.c.dag_id).where(job_table.c.job_id.in_(admitted))
    return {row.job_id: row.dag_id for row in connection.execute(query)}


def _subject(item: KindDecision) -> str:
    """Jobs that wait share their kind's answers; each admitted job has a placement of its own."""
    if item.decision.verdict is Verdict.ADMIT:
        return canonical_json(item.job_ids)
    verdict, reason, _, team = item.answer
    return canonical_json([kind_id(item.kind), verdict, None if reason is None else reason.code, team])


def _apart(plan: Plan) -> dict[str, list[str]]:
    """Return by subject the jobs that were told something else than most of their kind."""
    of_kind: dict[JobKind, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    for item in plan.decisions:
        if item.decision.verdict is not Verdict.ADMIT:
            of_kind[item.kind][_subject(item)] += item.job_ids
    apart: dict[str, list[str]] = {}
    for answers in of_kind.values():
        most = max(answers, key=lambda subject: len(answers[subject]))
        apart |= {subject: job_ids for subject, job_ids in answers.items() if subject != most}
    return apart


@lru_cache(maxsize=16384)
def kind_id(kind: JobKind) -> str:
    """Return the digest under which the decisions about this kind of job are stored."""
    return sha256(canonical_json(asdict(kind)).encode()).hexdigest()[:32]


def _row(plan: Plan, subject: str, item: KindDecision) -> dict[str, Any]:
    decision = item.decision
    placement, prediction = decision.placement, decision.prediction
    admitted = decision.verdict is Verdict.ADMIT
    return {
        "pool": plan.pool,
        "subject": subject,
        "kind_id": kind_id(item.kind),
        "job_id": item.job_ids[0] if admitted and item.job_ids else None,
        "family": item.kind.request.family,
        "gpus": item.kind.request.gpus,
        "verdict": decision.verdict.value,
        "reason": None if decision.reason is None else decision.reason.code,
        "findings": _plain_findings(decision.findings),
        "node": None if placement is None else placement.node,
        "gpu_uuids": None if placement is None else placement.gpu_uuids,
        "co_residents": list(decision.co_residents),
        "prediction": None if prediction is None else _plain(prediction),
        "choice": decision.choice,
        "notes": _plain_findings(decision.notes),
        "decided_at": plan.now_s,
    }


def _plain_findings(findings: Sequence[Finding]) -> list[dict[str, Any]]:
    return [{"code": finding.reason.code, "numbers": dict(finding.numbers)} for finding in findings]


def _findings(stored: Sequence[dict[str, Any]]) -> tuple[Finding, ...]:
    return tuple(Finding(Reason.from_code(found["code"]), found["numbers"]) for found in stored)


def _plain(prediction: SetPrediction) -> dict[str, Any]:
    expected: dict[str, Any] = {}
    if prediction.expected is not None:
        expected["expected"] = dict(prediction.expected)
    if prediction.expected_power_w is not None:
        expected["expected_power_w"] = prediction.expected_power_w
    return {
        "slowdowns": dict(prediction.slowdowns),
        "power_w": prediction.power_w,
        "utilisation_pct": prediction.utilisation_pct,
        "measured": prediction.measured,
        "error": prediction.error,
        **expected,
    }


def _same(stored: Any, row: dict[str, Any], names: Sequence[str]) -> bool:
    return stored is not None and all(
        canonical_json(getattr(stored, name)) == canonical_json(row[name]) for name in names
    )


def _end(connection: Connection, decision_ids: Sequence[int], now_s: float) -> None:
    if decision_ids:
        ended = update(decision_table).where(decision_table.c.decision_id == bindparam("ended_id"))
        connection.execute(
            ended.values(ended_at=now_s), [{"ended_id": decision_id} for decision_id in decision_ids]
        )


def _renew_numbers(connection: Connection, standing: dict[str, Any], rows: dict[str, dict[str, Any]]) -> None:
    renewed = [
        {"renewed_id": standing[subject].decision_id, **{name: row[name] for name in _NUMBERS}}
        for subject, row in rows.items()
        if not _same(standing[subject], row, _NUMBERS)
    ]
    if renewed:
        statement = update(decision_table).where(decision_table.c.decision_id == bindparam("renewed_id"))
        connection.execute(statement, renewed)


def _save_order(connection: Connection, plan: Plan) -> None:
    present = {"job_ids": list(plan.order), "apart": _apart(plan)}
    query = select(queue_table.c.job_ids, queue_table.c.apart).where(queue_table.c.pool == plan.pool)
    stored = connection.execute(query).first()
    if stored is not None and stored._asdict() == present:
        return
    statement = upsert(connection, queue_table).values(pool=plan.pool, **present)
    connection.execute(statement.on_conflict_do_update(index_elements=["pool"], set_=present))


def decisions_of(connection: Connection, *conditions: Any) -> list[StoredDecision]:
    """Return the stored decisions that meet the conditions, oldest first."""
    rows = connection.execute(
        select(decision_table)
        .where(*conditions)
        .order_by(decision_table.c.decided_at, decision_table.c.decision_id)
    )
    return [
        StoredDecision(
            row.decision_id,
            row.pool,
            row.subject,
            row.kind_id,
            row.job_id,
            row.family,
            row.gpus,
            _decision(row),
            row.decided_at,
            row.ended_at,
        )
        for row in rows
    ]


def _decision(row: Any) -> AdmissionDecision:
    return AdmissionDecision(
        Verdict(row.verdict),
        _findings(row.findings),
        None if row.node is None else Placement(row.node, row.gpu_uuids),
        tuple(row.co_residents),
        None if row.prediction is None else SetPrediction(**row.prediction),
        row.choice,
        _findings(row.notes),
        alternatives_of(row.alternatives),
    )


def events_of(connection: Connection, *conditions: Any) -> list[StoredEvent]:
    """Return the stored events that meet the conditions, oldest first."""
    rows = connection.execute(
        select(event_table).where(*conditions).order_by(event_table.c.happened_at, event_table.c.event_id)
    )
    return [StoredEvent(row.job_id, row.event, row.text, row.happened_at) for row in rows]
