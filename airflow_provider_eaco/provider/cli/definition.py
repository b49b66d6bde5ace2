"""The verbs of ``airflow eaco`` and their arguments; each verb's code is imported only when it runs."""

from __future__ import annotations

from typing import Any

from airflow.cli.cli_config import (
    ARG_OUTPUT,
    ARG_VERBOSE,
    ARG_YES,
    ActionCommand,
    Arg,
    CLICommand,
    GroupCommand,
    lazy_load_command,
)

from airflow_provider_eaco.provider.db_clean import take_part_in_db_clean

_COMMANDS = "airflow_provider_eaco.provider.cli"


def _arg(*flags: str, **settings: Any) -> Arg:
    return Arg(flags, **settings)  # type: ignore[no-untyped-call] # Airflow gives Arg no annotations


ARG_TASK = _arg(
    "task",
    nargs="+",
    metavar="TASK",
    help="a job id, or DAG_ID.TASK_ID, or DAG_ID RUN_ID TASK_ID [MAP_INDEX]",
)
ARG_FAMILY = _arg("family", metavar="FAMILY", help="name of the family, as `profiles list` shows it")
ARG_IMPORT_FILE = _arg("file", metavar="FILE", help="profiles as CSV or JSON, as `profiles export` writes")
ARG_EXPORT_FILE = _arg(
    "file", metavar="FILE", nargs="?", default="-", help="where to write (default: -, standard output)"
)
ARG_FILE_FORMAT = _arg(
    "--file-format",
    choices=("csv", "json"),
    default=None,
    metavar="(csv, json)",
    help="format of FILE (default: by its suffix, else csv)",
)
ARG_NODE = _arg("node", metavar="NODE", help="name of the node, as `nodes` shows it")
ARG_NODE_ACTION = _arg("action", nargs="?", choices=("add", "revoke"), help="without it nodes are listed")
ARG_NODE_NAME = _arg("name", nargs="?", metavar="NAME", help="the node to add or to revoke")
ARG_WORKER_NODE = _arg("--node", required=True, metavar="NAME", help="name that `nodes add` was given")
ARG_CREDENTIAL_FILE = _arg(
    "--credential-file",
    metavar="FILE",
    help="file with the node's credential (default: the variable EACO_NODE_CREDENTIAL)",
)
ARG_RUN_AS = _arg(
    "--run-as",
    metavar="USER",
    help="give up root after the credential was read; the worker and its tasks run as this user",
)
ARG_SAMPLE_AS = _arg(
    "--run-as",
    metavar="USER",
    help="give up root after the credential was read; the sampler runs as this user",
)
ARG_UNDO = _arg("--undo", action="store_true", default=False, help="let new work start there again")
ARG_MONTH = _arg(
    "--month", metavar="YYYY-MM", default=None, help="a month in UTC, or all (default: the present one)"
)
ARG_REPORT_OUTPUT = _arg(
    "--output",
    "-o",
    choices=("table", "json", "yaml", "csv", "html"),
    default="table",
    metavar="(table, json, yaml, csv, html)",
    help="output format (default: table)",
)
ARG_POOL = _arg(
    "--pool",
    metavar="NAME",
    default=None,
    help="the GPU pool that is to be otherwise (default: the only one)",
)
ARG_POLICY = _arg("--policy", metavar="NAME", default=None, help="another admission policy")
ARG_ORDER = _arg("--order", metavar="NAME", default=None, help="another ordering of the queue")
ARG_GPUS = _arg("--gpus", metavar="N", type=int, default=None, help="so many GPUs in the pool")
ARG_MAX_RESIDENTS = _arg(
    "--max-residents", metavar="N", type=int, default=None, help="so many tasks on one GPU at most"
)
ARG_MAX_STRETCH = _arg(
    "--max-stretch", metavar="X", default=None, help="limit of run time / time alone for every task, or none"
)
ARG_BOOKED_GPUS = _arg(
    "--gpus",
    metavar="GPU,...",
    default=None,
    help="indices or UUIDs with commas between (default: all GPUs of the node)",
)
ARG_FROM = _arg(
    "--from",
    dest="begins",
    metavar="INSTANT",
    default="now",
    help="now, or an instant as in ISO 8601, UTC unless it says otherwise (default: now)",
)
ARG_UNTIL = _arg(
    "--until",
    required=True,
    metavar="INSTANT",
    help="an instant, or how long after its beginning, such as 90min, 4h or 2d",
)
ARG_FOR = _arg(
    "--for", dest="whom", required=True, metavar="NAME", help="who has them: tasks that wait are told so"
)
ARG_NOTE = _arg("--note", metavar="TEXT", default="", help="what else is to be known of it")
ARG_BOOKING = _arg("booking", type=int, metavar="ID", help="number of the booking, as `bookings` shows it")
ARG_POOL_NAME = _arg("name", metavar="NAME", help="name of a GPU pool, as `status` shows it")


def _command(
    name: str, module: str, help_text: str, *args: Arg, description: str | None = None
) -> CLICommand:
    return ActionCommand(
        name=name,
        help=help_text,
        description=description,
        func=lazy_load_command(f"{_COMMANDS}.{module}"),
        args=(*args, ARG_OUTPUT, ARG_VERBOSE),
    )


_PROFILES = GroupCommand(
    name="profiles",
    help="What is believed about families of jobs",
    subcommands=(
        _command("list", "profile_commands.list_profiles", "List all profiles, solo and co-allocation"),
        _command(
            "show",
            "profile_commands.show_profile",
            "Show what is known of a family: numbers, age, source, samples, spread",
            ARG_FAMILY,
        ),
        _command(
            "import",
            "profile_commands.import_profiles",
            "Read profiles from a file; all of them or, with an error in any row, none",
            ARG_IMPORT_FILE,
            ARG_FILE_FORMAT,
        ),
        ActionCommand(
            name="export",
            help="Write all profiles to a file that `profiles import` reads",
            func=lazy_load_command(f"{_COMMANDS}.profile_commands.export_profiles"),
            args=(ARG_EXPORT_FILE, ARG_FILE_FORMAT, ARG_VERBOSE),
        ),
    ),
)

_POOLS = GroupCommand(
    name="pools",
    help="The Airflow pools that are sized from the GPU inventory",
    subcommands=(
        _command(
            "reset",
            "control_commands.reset_pool",
            "Size the Airflow pool from the inventory again; a user's edit of it wins no longer",
            ARG_POOL_NAME,
        ),
    ),
)

_REPORT = ActionCommand(
    name="report",
    help="Report energy, cost and savings by month, team, pool, DAG and family",
    func=lazy_load_command(f"{_COMMANDS}.report_commands.report"),
    args=(ARG_MONTH, ARG_REPORT_OUTPUT, ARG_VERBOSE),
)

_SIMULATE = _command(
    "simulate",
    "simulate_command.simulate",
    "Simulate the present queue and running set under other settings; nothing is changed",
    ARG_POOL,
    ARG_POLICY,
    ARG_ORDER,
    ARG_GPUS,
    ARG_MAX_RESIDENTS,
    ARG_MAX_STRETCH,
)

# What runs on a machine with GPUs until it is told to stop.
_ON_NODES = (
    ActionCommand(
        name="worker",
        help="Offer this machine's GPUs under a node's name and start what is granted there",
        func=lazy_load_command(f"{_COMMANDS}.node_commands.worker"),
        args=(ARG_WORKER_NODE, ARG_CREDENTIAL_FILE, ARG_RUN_AS, ARG_VERBOSE),
    ),
    ActionCommand(
        name="sampler",
        help="Meter the tasks that other executors run on this machine's GPUs; start nothing",
        func=lazy_load_command(f"{_COMMANDS}.node_commands.sampler"),
        args=(ARG_WORKER_NODE, ARG_CREDENTIAL_FILE, ARG_SAMPLE_AS, ARG_VERBOSE),
    ),
)

_DRAIN = _command(
    "drain",
    "control_commands.drain",
    "Let no new work start on a node; what runs there goes on",
    ARG_NODE,
    ARG_UNDO,
)

_BOOKINGS = (
    _command(
        "book",
        "booking_commands.book",
        "Keep GPUs of a node free of tasks for somebody outside Airflow, for a span of time",
        ARG_NODE,
        ARG_BOOKED_GPUS,
        ARG_FROM,
        ARG_UNTIL,
        ARG_FOR,
        ARG_NOTE,
    ),
    _command("bookings", "booking_commands.bookings", "List the bookings that have not ended"),
    _command(
        "unbook",
        "booking_commands.unbook",
        "End a booking, or call one off that has not begun",
        ARG_BOOKING,
    ),
)

_DB = GroupCommand(
    name="db",
    help="The provider's own tables",
    subcommands=(
        ActionCommand(
            name="remove",
            help="Remove all tables of the provider and nothing else (`airflow db migrate` makes them anew)",
            func=lazy_load_command(f"{_COMMANDS}.control_commands.remove_tables"),
            args=(ARG_YES, ARG_VERBOSE),
        ),
    ),
)


def get_eaco_cli_commands() -> list[CLICommand]:
    """Return the group ``airflow eaco``, as Airflow's command line asks a provider for it."""
    take_part_in_db_clean()
    return [
        GroupCommand(
            name="eaco",
            help="GPU pools, queue and reasons of the EaCO provider",
            subcommands=(
                _command("status", "view_commands.status", "Show pools, nodes, queue, power and energy"),
                _command("queue", "view_commands.queue", "List the waiting tasks in planned order"),
                _command(
                    "why",
                    "view_commands.why",
                    "Tell why a task waits and what would change it, or what has become of it",
                    ARG_TASK,
                ),
                _command("leases", "view_commands.leases", "List who holds which GPUs, with whom"),
                _REPORT,
                _command(
                    "nodes",
                    "node_commands.nodes",
                    "List nodes and their GPUs; `nodes add NAME` prints a credential for a worker, once, and "
                    "`nodes revoke NAME` voids it",
                    ARG_NODE_ACTION,
                    ARG_NODE_NAME,
                ),
                *_ON_NODES,
                _PROFILES,
                _SIMULATE,
                _DRAIN,
                *_BOOKINGS,
                _command("hold", "control_commands.hold", "Keep a waiting task from starting", ARG_TASK),
                _command("release", "control_commands.release", "End the hold of a task", ARG_TASK),
                _POOLS,
                _DB,
            ),
        )
    ]
