"""The verbs that change something: drain, hold, release, pools reset, db remove."""

from __future__ import annotations

from argparse import Namespace

from airflow_provider_eaco.core.lifecycle import JobPhase
from airflow_provider_eaco.provider.cli.console import CommandError, changing, print_rows


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
