"""The energy report as tables, documents, CSV and a web page."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from html import escape
from typing import Any

from airflow_provider_eaco.provider.energy_report import Line, MonthSums, Report
from airflow_provider_eaco.provider.shown import (
    JOULES_PER_KWH,
    UNKNOWN,
    shown_duration,
    shown_energy,
    shown_number,
)

_STYLE = """
:root { color-scheme: light dark; font: 15px/1.4 system-ui, sans-serif; }
body { margin: 2rem; } div { margin: 1rem 0; overflow-x: auto; } table { border-collapse: collapse; }
th, td { padding: .25rem .7rem; border-bottom: 1px solid #8886; text-align: right; white-space: nowrap; }
th:first-child, td:first-child, .name { text-align: left; }
td.name { min-width: 10rem; white-space: normal; overflow-wrap: anywhere; }
"""


def month_rows(report: Report) -> list[dict[str, str]]:
    """Return a row for each month, to be read by people."""
    rows = [_month_row(month, report) for month in report.months]
    columns = list(dict.fromkeys(name for row in rows for name in row))
    return [{name: row.get(name, "") for name in columns} for row in rows]


def line_rows(report: Report) -> list[dict[str, str]]:
    """Return a row for each group, to be read by people."""
    return [_line_row(line, report) for line in report.lines]


def as_document(report: Report) -> dict[str, Any]:
    """Return the report for programs: joules and seconds, ``None`` where nothing is known."""
    return {
        "price_per_kwh": report.price_per_kwh,
        "currency": report.currency,
        "carbon_g_per_kwh": report.carbon_g_per_kwh,
        "method": report.method,
        "months": [asdict(month) for month in report.months],
        "lines": [asdict(line) for line in report.lines],
    }


def as_csv(report: Report) -> str:
    """Return the lines as CSV, and the sums of months as lines of the group ``month``: joules and seconds,
    empty where nothing is known.
    """
    columns = list(dict.fromkeys([*Line.__dataclass_fields__, *MonthSums.__dataclass_fields__]))
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, restval="", lineterminator="\n")
    writer.writeheader()
    for line in report.lines:
        writer.writerow(_plain({**asdict(line), "name": _inert(line.name)}))
    for month in report.months:
        writer.writerow(_plain({"group": "month", "name": month.month, **asdict(month)}))
    return text.getvalue()


def as_html(report: Report) -> str:
    """Return the report as one page that needs nothing else."""
    parts = [_table(month_rows(report))]
    for kind in dict.fromkeys(line.group for line in report.lines):
        rows = [_line_row(line, report) for line in report.lines if line.group == kind]
        parts += [f"<h2>By {escape(kind)}</h2>", _table(rows)]
    body = "\n".join(parts) if report.months else "<p>no energy is recorded</p>"
    return (
        "<!DOCTYPE html>\n"
        f'<html lang="en"><head><meta charset="utf-8"><title>Energy of GPUs</title><style>{_STYLE}</style>'
        f"</head><body>\n<h1>Energy of GPUs</h1>\n{body}\n<p>{escape(report.method)}</p>\n</body></html>\n"
    )


def _plain(row: Mapping[str, Any]) -> dict[str, Any]:
    return {name: "" if value is None else value for name, value in row.items()}


def _inert(text: str) -> str:
    """Return a name that no spreadsheet takes for a formula."""
    return f"'{text}" if text[:1] in {"=", "+", "-", "@"} else text


def _month_row(month: MonthSums, report: Report) -> dict[str, str]:
    row = {
        "month": month.month,
        "all_gpus": _at_least(month.unknown_s > 0, month.devices_j) + _kwh(month.devices_j),
        "finished": _kwh(month.finished_j),
        "failed": _kwh(month.failed_j),
        "open": _kwh(month.open_j),
        "idle": _kwh(month.idle_j),
        "strangers": _kwh(month.strangers_j),
        "unmatched": _kwh(month.unmatched_j),
    }
    if month.excess_j is not None and month.excess_j > 1e-6 * max(1.0, month.devices_j or 0.0):
        row["beyond_the_gpus"] = _kwh(month.excess_j)
    if month.node_j is not None:
        row |= {"node_meter": _kwh(month.node_j), "its_gpus": _kwh(month.node_gpus_j)}
    return {**row, **_priced(month.cost, month.co2e_g, report)}


def _line_row(line: Line, report: Report) -> dict[str, str]:
    saved = UNKNOWN if line.saved_j is None else _signed_kwh(line.saved_j)
    return {
        "month": line.month,
        "group": line.group,
        "name": line.name,
        "tries": str(line.tries),
        "energy": _at_least(line.partial, line.energy_j) + _kwh(line.energy_j),
        "of_it_failed": _kwh(line.failed_j),
        "gpu_hours": shown_number(line.gpu_h, 1),
        "mean_wait": shown_duration(line.wait_s),
        "stretch": shown_number(line.stretch, 3),
        "saved": f"{saved} ({line.compared} of {line.tries})",
        **_priced(line.cost, line.co2e_g, report),
    }


def _at_least(is_partial: bool, energy_j: float | None) -> str:
    return "at least " if is_partial and energy_j is not None else ""


def _priced(cost: float | None, co2e_g: float | None, report: Report) -> dict[str, str]:
    """Return cost and CO2e as far as the site has a price and a factor."""
    row = {}
    if report.price_per_kwh is not None:
        row["cost"] = shown_number(cost, 2, report.currency)
    if report.carbon_g_per_kwh is not None:
        row["co2e"] = shown_number(None if co2e_g is None else co2e_g / 1000, 3, "kg")
    return row


def _kwh(energy_j: float | None) -> str:
    return shown_number(None if energy_j is None else energy_j / JOULES_PER_KWH, 3, "kWh")


def _signed_kwh(energy_j: float) -> str:
    """Return what was saved; what was lost reads so, since no amount is negative."""
    text = shown_energy(abs(energy_j)) if abs(energy_j) < 0.001 * JOULES_PER_KWH else _kwh(abs(energy_j))
    return text if energy_j >= 0 else f"lost {text}"


def _table(rows: Sequence[Mapping[str, str]]) -> str:
    columns = list(dict.fromkeys(name for row in rows for name in row))
    head = "".join(_cell("th", name, name.replace("_", " ")) for name in columns)
    body = "\n".join(
        "<tr>" + "".join(_cell("td", name, row.get(name, "")) for name in columns) + "</tr>" for row in rows
    )
    table = f"<table><thead><tr>{head}</tr></thead><tbody>\n{body}\n</tbody></table>"
    return f'<div tabindex="0">{table}</div>'


def _cell(tag: str, column: str, text: str) -> str:
    kind = ' class="name"' if column == "name" else ""
    return f"<{tag}{kind}>{escape(text)}</{tag}>"
