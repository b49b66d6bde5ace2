"""How a command runs, prints and fails: in Airflow's formats, and with one line and exit code 1."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable, Iterable, Mapping
from functools import wraps
from typing import Any

from airflow.cli.simple_table import AirflowConsole
from airflow.utils.cli import action_cli, suppress_logs_and_warning
from airflow.utils.providers_configuration_loader import providers_configuration_loaded

from airflow_provider_eaco.core.model.errors import EacoError, StoreUnavailableError

Command = Callable[[Namespace], None]


class CommandError(EacoError):
    """What the user asked for cannot be done; the message says why and what would work."""


def reading(command: Command) -> Command:
    """Make a function a command that changes nothing."""
    return _quiet(_told_in_one_line(command))


def changing(command: Command) -> Command:
    """Make a function a command that changes something: it leaves a line in Airflow's audit log."""
    audited: Command = action_cli(check_db=False)(_told_in_one_line(command))  # type: ignore[no-untyped-call] # Airflow's decorator has no annotations
    return _quiet(audited)


def _quiet(command: Command) -> Command:
    quiet: Command = suppress_logs_and_warning(providers_configuration_loaded(command))
    return quiet


def _told_in_one_line(command: Command) -> Command:
    @wraps(command)
    def run(args: Namespace) -> None:
        from sqlalchemy.exc import SQLAlchemyError

        try:
            command(args)
        except StoreUnavailableError as error:
            # The cause spans lines with some drivers; what to do about it must stay one line.
            raise SystemExit(" ".join(str(error).split())) from error
        except EacoError as error:
            raise SystemExit(str(error)) from error
        except SQLAlchemyError as error:
            cause = str(getattr(error, "orig", None) or error).strip().splitlines()[0]
            raise SystemExit(
                f"Airflow's database cannot be read: {cause}; run `airflow db migrate`"
            ) from error

    return run


def print_rows(rows: Iterable[Mapping[str, object]], output: str, *, empty: str = "") -> None:
    """Print rows in the format of ``--output``; an empty table is the sentence ``empty``."""
    data = [dict(row) for row in rows]
    if not data and output in {"table", "plain"} and empty:
        _console().print(empty)
        return
    _console().print_as(data=data, output=output)


def print_document(document: Mapping[str, object], output: str) -> None:
    """Print one document as JSON or YAML: a list with one object, as every other command prints a list."""
    _console().print_as(data=[dict(document)], output=output)


def print_section(title: str, rows: Iterable[Mapping[str, object]], output: str, *, empty: str) -> None:
    """Print a table under a title, for people."""
    _console().print(f"\n{title}")
    print_rows(rows, output, empty=empty)


def print_line(text: str) -> None:
    """Print one line for people, whole, however narrow the terminal is."""
    _console().print(text, soft_wrap=True)


def _console() -> Any:
    # Names and sentences are printed as they are: [eaco] is no markup, :gpu: no picture, 12 no highlight.
    return AirflowConsole(markup=False, emoji=False, highlight=False)
