"""The verbs that change something: drain, hold, release, pools reset, db remove."""

from __future__ import annotations

from argparse import Namespace

from airflow_provider_eaco.core.lifecycle import JobPhase
from airflow_provider_eaco.provider.cli.console import CommandError, changing, print_line, print_rows


@changing
def drain(args: Namespace) -> None:
    """Mark a node so that no new work starts there, or end that."""
    from airflow_provider_eaco.provider.wiring import open_store

    ledger = open_store().ledger
    if not ledger.set_draining(args.node, not args.undo):
        names = ", ".join(sorted(node.name for node in ledger.view().nodes))
        known = f"nodes are {names}" if names else "no GPU workers registered"
        raise CommandError(f"no node is named {args.node!r}; {known}")
    state = "takes new work again" if args.undo else "draining: nothing new starts there, what runs goes on"
    print_rows([{"node": args.node, "state": state}], args.output)


@changing
def hold(args: Namespace) -> None:
    """Keep a waiting job from starting."""
    _set_hold(args, on_hold=True)


@changing
def release(args: Namespace) -> None:
    """End the hold of a job."""
    _set_hold(args, on_hold=False)


def _set_hold(args: Namespace, *, on_hold: bool) -> None:
    from airflow_provider_eaco.provider.cli.finding import find_jobs
    from airflow_provider_eaco.provider.wiring import open_store

    store = open_store()
    waiting = [each for each in find_jobs(args.task, store.reads) if each.phase is JobPhase.WAITING]
    if not waiting:
        raise CommandError(
            f"{' '.join(args.task)} is not waiting; only a waiting task can be held or released"
        )
    changed = [record for record in waiting if store.ledger.set_hold(record.job.job_id, on_hold)]
    if not changed:
        raise CommandError(f"{' '.join(args.task)} has stopped waiting in the meantime")
    state = "held by a user" if on_hold else "released"
    print_rows(
        [{"task": record.job.label, "job": record.job.job_id, "state": state} for record in changed],
        args.output,
    )


@changing
def reset_pool(args: Namespace) -> None:
    """Give the Airflow pool of a GPU pool that a user has sized back to the provider."""
    from airflow_provider_eaco.provider.compat import own_session
    from airflow_provider_eaco.provider.pools import reset_slots
    from airflow_provider_eaco.provider.settings import load_settings

    declared = [pool.name for pool in load_settings().pools]
    if args.name not in declared:
        raise CommandError(f"no GPU pool is named {args.name!r}; [eaco] pools has {', '.join(declared)}")
    with own_session() as session:
        if not reset_slots(session, args.name):
            raise CommandError(
                f"Airflow has no pool {args.name!r}; the scheduler makes it at its next heartbeat"
            )
    state = "managed again: a scheduler sizes it from the inventory at its next heartbeat"
    print_rows([{"pool": args.name, "state": state}], args.output)


@changing
def remove_tables(args: Namespace) -> None:
    """Remove all tables of the provider after a yes; Airflow's are not touched."""
    from airflow import settings

    from airflow_provider_eaco.store.migrate import remove_tables as remove_all

    engine = settings.get_engine()  # type: ignore[no-untyped-call] # Airflow gives it no annotations
    if not args.yes:
        print_line(f"Database: {engine.url!r}")
        question = (
            "This removes queue, leases, profiles, decisions and energy of the provider. Proceed? (y/n) "
        )
        try:
            answer = input(question)
        except EOFError:
            raise CommandError("nothing was removed; without a terminal it takes --yes") from None
        if answer.strip().lower() != "y":
            raise CommandError("nothing was removed")
    removed = remove_all(engine)
    print_line(f"removed {', '.join(removed)}" if removed else "there was nothing to remove")
