"""``airflow eaco book``, ``bookings`` and ``unbook``: what they do to tasks, and what they refuse."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
import sqlalchemy as sa
from sqlalchemy.engine import Engine

from airflow_provider_eaco.core.model.placement import LeaseState
from airflow_provider_eaco.store import schema
from tests.builders import make_job
from tests.unit.provider.cli.rig import Cli, Cluster

FOR_ADA = ("--for", "Ada [b] <i>", "--note", "notebook")


def test_a_booked_gpu_starts_nothing_until_it_is_unbooked(cluster: Cluster, cli: Cli) -> None:
    """The task waits, told for whom until when; after ``unbook`` it starts in the next cycle."""
    cluster.add_node()
    [made] = cli("book", "n1", "--until", "2h", *FOR_ADA, "-o", "json").json()
    assert (made["node"], made["gpus"], made["for"], made["note"]) == ("n1", "0", "Ada [b] <i>", "notebook")
    cluster.add(make_job("j", "A", 1))
    assert cluster.plan().granted == ()
    [why] = cli("why", "j", "-o", "json").json()
    assert why["reason"] == "booked"
    assert f"GPU 0 of n1 by Ada [b] <i> from {made['from'][:16]} UTC until" in why["sentence"]
    assert f"until {made['until'][:16]} UTC" in why["sentence"]
    assert cli("queue", "-o", "json").json()[0]["sentence"] == why["sentence"]
    assert cli("bookings", "-o", "json").json() == [made]
    assert "ended" in cli("unbook", made["booking"]).out
    assert cli("bookings").out == "nobody has booked GPUs\n"
    assert [lease.job_id for lease in cluster.plan().granted] == ["j"]


def test_a_booking_to_come_names_gpus_and_begins_when_it_says(cluster: Cluster, cli: Cli) -> None:
    """Indices and UUIDs name GPUs, a duration counts from the beginning, instants are UTC by default."""
    cluster.add_node(gpus=3)
    now_s = cluster.store.clock.now_s()
    begin = datetime.fromtimestamp(now_s + 86400, UTC).replace(microsecond=0, tzinfo=None)
    [made] = cli(
        "book", "n1", "--gpus", "2, n1-gpu00", "--from", begin.isoformat(), "--until", "1.5h", *FOR_ADA,
        "-o", "json",
    ).json()  # fmt: skip
    assert made["gpus"] == "0, 2"
    assert (made["from"], made["state"]) == (f"{begin} UTC", "to come")
    [stored] = cluster.store.bookings.present()
    assert stored.start_s == begin.replace(tzinfo=UTC).timestamp()
    assert stored.end_s - stored.start_s == 5400
    berlin = f"{begin.isoformat()}+01:00"
    assert cli("book", "n1", "--gpus", "1", "--until", berlin, "--for", "Bob", "-o", "json").code == 0
    bob = next(each for each in cluster.store.bookings.present() if each.name == "Bob")
    assert bob.end_s == stored.start_s - 3600
    assert [row["for"] for row in cli("bookings", "-o", "json").json()] == ["Bob", "Ada [b] <i>"]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("n9", "--until", "1h"), "NODE: no node is named 'n9'; nodes are n1"),
        (("n1", "--until", "1h", "--gpus", "7"), "--gpus: node n1 has no GPU '7'; it has 0 (n1-gpu00)"),
        (("n1", "--until", "1h", "--gpus", "0,,1"), "--gpus: '0,,1' must be indices or UUIDs"),
        (("n1", "--until", "soon"), "--until: 'soon' must be an instant"),
        (("n1", "--until", "0h"), "--until: "),
        (("n1", "--until", "2001-01-01"), "--until: 2001-01-01 00:00 UTC is in the past"),
        (("n1", "--until", "99999999d"), "--until: must be an instant within five years"),
        (("n1", "--until", "1h", "--from", "2001-01-01"), "--from: 2001-01-01 00:00 UTC is in the past"),
        (("n1", "--until", "1h", "--from", "later"), "--from: 'later' must be now, or an instant"),
        (("n1", "--until", "1h", "--for", " "), "--for: is empty"),
        (("n1", "--until", "1h", "--note", "a\tb"), "--note: "),
    ],
    ids=str,
)
def test_what_cannot_be_booked_is_told_by_its_argument(
    cluster: Cluster, cli: Cli, words: tuple[str, ...], told: str
) -> None:
    """One line that names the argument and what is allowed, and nothing is booked."""
    cluster.add_node()
    outcome = cli("book", "--for", "Ada", *words)
    assert (outcome.code, outcome.err.count("\n")) == (1, 1)
    assert outcome.err.startswith(told)
    assert cluster.store.bookings.present() == ()


def test_an_overlap_says_with_whom(cluster: Cluster, cli: Cli) -> None:
    """A GPU that is somebody else's in that time is refused with name, span and number."""
    cluster.add_node(gpus=2)
    [made] = cli("book", "n1", "--gpus", "1", "--until", "2h", *FOR_ADA, "-o", "json").json()
    outcome = cli("book", "n1", "--until", "1h", "--for", "Bob")
    assert outcome.err.startswith("--gpus: GPU 1 of n1 is booked by Ada [b] <i> from ")
    assert outcome.err.endswith(f"(booking {made['booking']})\n")
    assert cli("book", "n1", "--gpus", "0", "--until", "1h", "--for", "Bob").code == 0


def test_unbooking_what_is_not_there_names_what_is(cluster: Cluster, cli: Cli) -> None:
    """The error lists the numbers that can be given."""
    assert cli("unbook", "5").err == "ID: no booking 5 runs or is to come; those that do: none\n"
    cluster.add_node()
    [made] = cli("book", "n1", "--until", "2h", *FOR_ADA, "-o", "json").json()
    assert cli("unbook", str(10**30)).err.endswith(f"those that do: {made['booking']}\n")


def test_each_format_lists_the_same(cluster: Cluster, cli: Cli) -> None:
    """Table, JSON and YAML have the same columns; a GPU that is gone is told by its UUID."""
    cluster.add_node(gpus=2)
    cli("book", "n1", "--until", "2h", *FOR_ADA)
    cluster.add_node(gpus=1)
    [row] = cli("bookings", "-o", "json").json()
    assert row["gpus"] == "0, n1-gpu01"
    assert row["state"] == "running"
    for output in ("table", "yaml", "plain"):
        printed = cli("bookings", "-o", output).out
        assert all(name in printed for name in row)


def test_who_books_and_unbooks_is_in_airflows_audit_log(cluster: Cluster, cli: Cli, engine: Engine) -> None:
    """One line for each change, none for a look."""
    from airflow.models.log import Log

    cluster.add_node()
    [made] = cli("book", "n1", "--until", "2h", *FOR_ADA, "-o", "json").json()
    cli("bookings")
    cli("unbook", made["booking"])
    with engine.connect() as connection:
        assert len(connection.scalars(sa.select(Log.event)).all()) == 2


def test_a_task_there_when_it_begins_reads_so_in_its_story(cluster: Cluster, cli: Cli) -> None:
    """Who runs on a GPU that is booked from now on goes on by default, and ``why`` tells of the booking."""
    cluster.add_node()
    cluster.add(make_job("j", "A", 1))
    cluster.plan()
    cluster.start("j")
    cli("book", "n1", "--until", "2h", *FOR_ADA)
    cluster.plan()
    cluster.plan()
    told = cli("why", "j").out
    assert told.count("GPU 0 of n1 is booked by Ada [b] <i> from") == 1
    assert cluster.lease("j").state is LeaseState.EXCLUSIVE


@pytest.mark.parametrize(
    "words",
    [("book", "n", "--until", "1h", "--for", "Ada"), ("bookings",), ("unbook", "1")],
    ids=" ".join,
)
def test_without_our_tables_each_verb_says_what_to_run(
    words: tuple[str, ...], cli: Cli, engine: Engine
) -> None:
    """One line that names ``airflow db migrate``, and no traceback."""
    schema.metadata.drop_all(engine)
    outcome = cli(*words)
    assert (outcome.code, outcome.err.count("\n")) == (1, 1)
    assert "airflow db migrate" in outcome.err
