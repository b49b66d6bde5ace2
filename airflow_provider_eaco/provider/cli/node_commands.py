"""The verbs about nodes with a worker: nodes, with add and revoke, and the worker itself."""

from __future__ import annotations

import logging
import sys
from argparse import Namespace
from collections.abc import Callable
from functools import partial

from airflow_provider_eaco.core.model.errors import EacoError
from airflow_provider_eaco.provider.cli.console import CommandError, changing, print_line, print_rows


def nodes(args: Namespace) -> None:
    """List the nodes, or change who may report for one."""
    if args.action is None:
        from airflow_provider_eaco.provider.cli.view_commands import nodes as list_nodes

        list_nodes(args)
    elif args.name is None:
        raise SystemExit(f"airflow eaco nodes {args.action}: name the node")
    else:
        {"add": _add, "revoke": _revoke}[args.action](args)


@changing
def _add(args: Namespace) -> None:
    """Print a credential for a node's worker; it is shown this once and stored nowhere."""
    from airflow_provider_eaco.provider.node_settings import is_node_name
    from airflow_provider_eaco.provider.wiring import open_credentials, open_store

    if not is_node_name(args.name):
        raise CommandError(
            f"{args.name!r} must be 1 to 128 letters, digits, dots, dashes or underscores; they name the node"
        )
    credentials = open_credentials()
    known = {row.node for row in credentials.rows()}
    if args.name not in known and args.name in {node.name for node in open_store().ledger.view().nodes}:
        raise CommandError(f"{args.name!r} is a node of a scheduler's own machine; choose another name")
    credential = credentials.add(args.name)
    if args.output in {"table", "plain"}:
        print_line(credential)
        sys.stderr.write(
            f"This credential is shown once. On the machine {args.name}: put it into a file that only root"
            f" can read, then\n  airflow eaco worker --node {args.name} --credential-file FILE\n"
        )
    else:
        print_rows([{"node": args.name, "credential": credential}], args.output)


@changing
def _revoke(args: Namespace) -> None:
    """Void the credential of a node: it takes nothing new, and nothing that it says is heard."""
    from airflow_provider_eaco.provider.wiring import open_credentials, open_store

    credentials = open_credentials()
    if not credentials.revoke(args.name):
        names = ", ".join(row.node for row in credentials.rows() if row.revoked_s is None) or "none"
        raise CommandError(f"node {args.name!r} has no valid credential; those that have one: {names}")
    open_store().ledger.forget_node(args.name)
    state = "revoked: it takes nothing new; what runs there counts as gone once it is silent long enough"
    print_rows([{"node": args.name, "state": state}], args.output)


def worker(args: Namespace) -> None:
    """Be the worker of a node until SIGTERM; what runs there goes on without it."""

    def serve(credential: str) -> None:
        from airflow_provider_eaco.provider.settings import load_settings
        from airflow_provider_eaco.provider.worker import run_worker

        run_worker(args.node, credential, load_settings())

    _be(args, "worker", serve)


def sampler(args: Namespace) -> None:
    """Be the sampler of a node until SIGTERM; nothing that runs there notices either."""

    def serve(credential: str) -> None:
        from airflow_provider_eaco.provider.observe_wiring import run_sampler
        from airflow_provider_eaco.provider.settings import load_settings

        run_sampler(args.node, credential, load_settings())

    _be(args, "sampler", serve)


def _be(args: Namespace, verb: str, serve: Callable[[str], None]) -> None:
    """Serve the node with its credential, of which nothing is left where a task could find it."""
    from airflow_provider_eaco.provider.node_settings import is_node_name
    from airflow_provider_eaco.provider.worker_secrets import close_memory, give_up_root, take_credential

    try:
        if not is_node_name(args.node):
            raise CommandError(
                f"--node: {args.node!r} must be 1 to 128 letters, digits, dots, dashes or underscores"
            )
        credential = take_credential(args.credential_file)
        give_up_root(args.run_as)
        close_memory()
        _serve(args, partial(serve, credential))
    except (EacoError, OSError) as error:
        raise SystemExit(f"airflow eaco {verb}: {error}") from error


def _serve(args: Namespace, serve: Callable[[], None]) -> None:
    from airflow.utils.providers_configuration_loader import providers_configuration_loaded

    logging.basicConfig(format="%(asctime)s %(levelname)s %(name)s: %(message)s", force=True)
    # Of its own, since Celery sets the level of all loggers.
    logging.getLogger("airflow_provider_eaco").setLevel(logging.DEBUG if args.verbose else logging.INFO)
    providers_configuration_loaded(serve)()
