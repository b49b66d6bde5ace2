"""The verbs of ``airflow eaco profiles``."""

from __future__ import annotations

import sys
from argparse import Namespace
from difflib import get_close_matches
from pathlib import Path

from airflow_provider_eaco.core.model.profile import ProfileBook
from airflow_provider_eaco.data.profile_files import (
    Profile,
    profiles_in_order,
    read_profiles,
    write_profiles,
)
from airflow_provider_eaco.provider.cli.console import (
    CommandError,
    changing,
    print_line,
    print_rows,
    reading,
)
from airflow_provider_eaco.provider.cli.profile_rows import profile_details, profile_rows
from airflow_provider_eaco.provider.cli.rows import columns

STDOUT = "-"


@reading
def list_profiles(args: Namespace) -> None:
    """List all profiles."""
    from airflow_provider_eaco.provider.wiring import open_store

    store = open_store()
    rows = profile_rows(profiles_in_order(store.profiles.book()), store.clock.now_s())
    print_rows(map(columns, rows), args.output, empty="no profiles")


@reading
def show_profile(args: Namespace) -> None:
    """Show all that is known of a family, alone and together with others."""
    from airflow_provider_eaco.provider.wiring import open_store

    store = open_store()
    found = _profiles_of(store.profiles.book(), args.family)
    details = [columns(profile_details(profile, store.clock.now_s())) for profile in found]
    if args.output not in {"table", "plain"}:
        print_rows(details, args.output)
        return
    for detail in details:
        print_rows(({"": name, "value": value} for name, value in detail.items()), args.output)
        print_line("")


def _profiles_of(book: ProfileBook, family: str) -> list[Profile]:
    profiles = profiles_in_order(book)
    found = [profile for profile in profiles if family in profile.key.families]
    if not found:
        known = sorted({name for profile in profiles for name in profile.key.families})
        near = ", ".join(get_close_matches(family, known, n=3)) or "see `airflow eaco profiles list`"
        raise CommandError(f"no profile of a family {family!r}; near: {near}")
    return found


@changing
def import_profiles(args: Namespace) -> None:
    """Store the profiles of a file, all or none, in place of what is stored for the same keys."""
    from airflow_provider_eaco.provider.wiring import open_store

    path = Path(args.file)
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise CommandError(f"{args.file} cannot be read: {error}") from error
    store = open_store()
    now_s = store.clock.now_s()
    profiles = read_profiles(text, _format_of(args), path.name, now_s)
    store.profiles.save_all(profiles)
    print_rows(map(columns, profile_rows(profiles, now_s)), args.output)


@reading
def export_profiles(args: Namespace) -> None:
    """Write all profiles to a file or to standard output."""
    from airflow_provider_eaco.provider.wiring import open_store

    text = write_profiles(open_store().profiles.book(), _format_of(args))
    if args.file == STDOUT:
        sys.stdout.write(text)
        return
    try:
        Path(args.file).write_text(text, encoding="utf-8", newline="")
    except OSError as error:
        raise CommandError(f"{args.file} cannot be written: {error}") from error


def _format_of(args: Namespace) -> str:
    if args.file_format is not None:
        return str(args.file_format)
    return "json" if Path(args.file).suffix.lower() == ".json" else "csv"
