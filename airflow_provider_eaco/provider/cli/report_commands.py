"""The verb that reports energy by month."""

from __future__ import annotations

import json
import sys
from argparse import Namespace
from collections.abc import Callable

from airflow.utils import yaml

from airflow_provider_eaco.core.energy.records import month_of
from airflow_provider_eaco.provider.cli.console import (
    CommandError,
    print_line,
    print_section,
    reading,
)
from airflow_provider_eaco.provider.energy_report import ALL_MONTHS, make_report, wrong_month
from airflow_provider_eaco.provider.report_forms import as_csv, as_document, as_html, line_rows, month_rows
from airflow_provider_eaco.provider.settings import load_settings

_DOCUMENTS: dict[str, Callable[[object], str]] = {
    "json": lambda document: json.dumps(document) + "\n",
    "yaml": lambda document: str(yaml.dump(document)),
}
EMPTY = "no energy is recorded for {month}"


@reading
def report(args: Namespace) -> None:
    """Show what teams, pools, DAGs and families have used, month by month."""
    from airflow_provider_eaco.provider.wiring import open_store

    store, settings = open_store(), load_settings()
    month = args.month or month_of(store.clock.now_s())
    if wrong := wrong_month(month):
        raise CommandError(f"--month: {wrong}")
    stored = store.energy_months.read(None if month == ALL_MONTHS else month)
    made = make_report(stored, store.profiles.book(), settings)
    if args.output == "csv":
        sys.stdout.write(as_csv(made))
    elif args.output == "html":
        sys.stdout.write(as_html(made))
    elif args.output in _DOCUMENTS:
        # Not through Airflow's console, which makes text of every number.
        sys.stdout.write(_DOCUMENTS[args.output]([as_document(made)]))
    elif not made.months:
        print_line(EMPTY.format(month="any month" if month == ALL_MONTHS else month))
    else:
        print_section("All GPUs", month_rows(made), args.output, empty="")
        for kind in dict.fromkeys(line.group for line in made.lines):
            rows = [row for row in line_rows(made) if row["group"] == kind]
            print_section(f"By {kind}", rows, args.output, empty="")
        print_line(f"\n{made.method}")
