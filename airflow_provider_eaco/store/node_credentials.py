"""Credentials of nodes with a worker, as digests, and which worker reports under each."""

from __future__ import annotations

import hashlib
import hmac
import secrets
from dataclasses import dataclass

from sqlalchemy import select, update
from sqlalchemy.engine import Connection

from airflow_provider_eaco.store.node_tables import node_credential as credential_table
from airflow_provider_eaco.store.session import Database, upsert

# 256 random bits: nobody can guess them, so that one round of SHA-256 is enough to store them by.
_SECRET_BYTES = 32
_NO_DIGEST = hashlib.sha256(b"").hexdigest()


@dataclass(frozen=True, slots=True)
class CredentialRow:
    """What is known of a node's credential; instants are seconds since the epoch."""

    node: str
    created_s: float
    revoked_s: float | None
    reported_s: float | None
    machine: str | None


class SqlNodeCredentials:
    """Who may report for which node."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def add(self, node: str) -> str:
        """Make a credential for the node and return it, this once; one that it had is void from now on."""
        credential = secrets.token_urlsafe(_SECRET_BYTES)
        with self._database.writing() as connection:
            values = {
                "digest": digest_of(credential),
                "created_at": self._database.now_s(connection),
                "revoked_at": None,
                # Whoever has the new one may report at once, from any machine.
                "machine": None,
            }
            statement = upsert(connection, credential_table).values(node=node, **values)
            connection.execute(statement.on_conflict_do_update(index_elements=["node"], set_=values))
        return credential

    def revoke(self, node: str) -> bool:
        """Make the node's credential void; return whether it had one."""
        with self._database.writing() as connection:
            revoked = (
                update(credential_table)
                .where(credential_table.c.node == node, credential_table.c.revoked_at.is_(None))
                .values(revoked_at=self._database.now_s(connection))
            )
            return connection.execute(revoked).rowcount == 1

    def accepts(self, node: str, credential: str) -> bool:
        """Tell whether this is the node's credential; takes equally long whatever is wrong with it."""
        with self._database.reading() as connection:
            query = select(credential_table.c.digest).where(
                credential_table.c.node == node, credential_table.c.revoked_at.is_(None)
            )
            known = connection.execute(query).scalar_one_or_none()
        same = hmac.compare_digest(known or _NO_DIGEST, digest_of(credential))
        return same and known is not None

    def nodes(self) -> frozenset[str]:
        """Return the nodes that have a credential which was not revoked."""
        with self._database.reading() as connection:
            valid = credential_table.c.revoked_at.is_(None)
            return frozenset(connection.scalars(select(credential_table.c.node).where(valid)))

    def rows(self) -> list[CredentialRow]:
        """Return all credentials by node, revoked ones included."""
        columns = ("node", "created_at", "revoked_at", "reported_at", "machine")
        query = select(*(credential_table.c[name] for name in columns)).order_by(credential_table.c.node)
        with self._database.reading() as connection:
            return [CredentialRow(*row) for row in map(tuple, connection.execute(query))]


def take_turn(connection: Connection, node: str, machine: str, now_s: float, silent_s: float) -> bool:
    """Note that this machine reports for the node; return whether it may.

    Another machine may only once the last one has been silent for ``silent_s``: two with one credential
    would each take the other's runs for ended.
    """
    row = connection.execute(
        select(credential_table).where(credential_table.c.node == node).with_for_update()
    ).one_or_none()
    if row is None or row.revoked_at is not None:
        return False
    is_other = row.machine not in {None, machine}
    if is_other and row.reported_at is not None and now_s - row.reported_at < silent_s:
        return False
    mine = update(credential_table).where(credential_table.c.node == node)
    connection.execute(mine.values(machine=machine, reported_at=now_s))
    return True


def digest_of(credential: str) -> str:
    """Return what is stored of a credential."""
    return hashlib.sha256(credential.encode("utf-8", "surrogateescape")).hexdigest()
