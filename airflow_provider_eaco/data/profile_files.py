"""Profiles as files: CSV or JSON with the columns of :mod:`.profile_columns`, read whole or not at all."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from airflow_provider_eaco.core.model.errors import EacoError, InvalidProfileError, shortened, shown
from airflow_provider_eaco.core.model.profile import (
    CoallocationProfile,
    PowerScope,
    ProfileBook,
    ProfileKey,
    ProfileSource,
    SoloProfile,
    family_set,
)
from airflow_provider_eaco.data.profile_columns import (
    COLUMN_NAMES,
    COLUMNS,
    SET_ONLY,
    SOLO_ONLY,
    CellError,
    join_parts,
    write_cell,
    write_instant,
)

Profile = SoloProfile | CoallocationProfile

MAX_SHOWN_PROBLEMS = 20


class ProfileFileError(EacoError):
    """A profile file with errors. ``problems`` names each with its line, column and what was expected."""

    def __init__(self, name: str, problems: Sequence[str]) -> None:
        shown = [f"{name}: {problem}" for problem in problems[:MAX_SHOWN_PROBLEMS]]
        if len(problems) > MAX_SHOWN_PROBLEMS:
            shown.append(f"{name}: and {len(problems) - MAX_SHOWN_PROBLEMS} more errors")
        super().__init__("\n".join(shown))
        self.problems = tuple(problems)


@dataclass(frozen=True, slots=True)
class _Row:
    """One record of a file: where it stands and its cells, empty ones left out."""

    place: str
    cells: Mapping[str, str]


def read_profiles(text: str, file_format: str, name: str, now_s: float) -> tuple[Profile, ...]:
    """Return all profiles of a file, marked as imported.

    A row without ``updated_at`` counts as changed at ``now_s``; one without ``reference`` names the file.

    :param file_format: ``csv`` or ``json``.
    :param name: the file's name, for messages.
    :raises ProfileFileError: with every error of the file; then nothing is returned.
    """
    rows, problems = (_json_rows if file_format == "json" else _csv_rows)(text)
    profiles: list[Profile] = []
    place_of: dict[ProfileKey, str] = {}
    for row in rows:
        profile = _profile(row, name, now_s, problems)
        if profile is None:
            continue
        if profile.key in place_of:
            problems.append(f"{row.place}: the same families, GPU model and count as {place_of[profile.key]}")
        place_of.setdefault(profile.key, row.place)
        profiles.append(profile)
    if not rows and not problems:
        problems.append("line 1: no profile in the file; expected at least one row below the column names")
    if problems:
        raise ProfileFileError(name, problems)
    return tuple(profiles)


def write_profiles(book: ProfileBook, file_format: str) -> str:
    """Return all profiles of the book as the text of a file that :func:`read_profiles` reads."""
    rows = [_cells_of(profile) for profile in profiles_in_order(book)]
    if file_format == "json":
        return json.dumps([_json_row(row) for row in rows], indent=2, ensure_ascii=False) + "\n"
    out = io.StringIO()
    writer = csv.DictWriter(out, COLUMN_NAMES, lineterminator="\n")
    writer.writeheader()
    writer.writerows({column: write_cell(value) for column, value in row.items()} for row in rows)
    return out.getvalue()


def profiles_in_order(book: ProfileBook) -> list[Profile]:
    """Return solo profiles first, then sets by size; each group by GPU model, count and names."""
    profiles: list[Profile] = [*book.solo.values(), *book.coallocation.values()]
    return sorted(profiles, key=lambda p: (len(p.key.families), p.gpu_model, p.gpu_count, p.key.families))


def _cells_of(profile: Profile) -> dict[str, object]:
    families = profile.key.families
    cells: dict[str, object] = dict.fromkeys(COLUMN_NAMES)
    for column in COLUMN_NAMES:
        cells[column] = getattr(profile, column, None)
    cells["families"] = tuple(families)
    cells["levels"] = tuple(write_cell(level) for level in profile.levels) or None
    cells["scope"] = profile.scope.value
    cells["source"] = profile.source.value
    cells["updated_at"] = write_instant(profile.updated_s)
    if isinstance(profile, CoallocationProfile):
        cells["slowdowns"] = tuple(float(profile.slowdowns[family]) for family in families)
    return cells


def _json_row(cells: Mapping[str, object]) -> dict[str, object]:
    return {
        column: list(value) if isinstance(value, tuple) else value
        for column, value in cells.items()
        if value is not None and value != ""
    }


def _csv_rows(text: str) -> tuple[list[_Row], list[str]]:
    reader = csv.reader(io.StringIO(text.removeprefix("\ufeff"), newline=""), strict=True)
    rows: list[_Row] = []
    problems: list[str] = []
    try:
        header = [cell.strip() for cell in next(reader, [])]
        problems.extend(_header_problems(header))
        if problems:
            return [], problems
        for cells in reader:
            place = f"line {reader.line_num}"
            if not any(cell.strip() for cell in cells):
                continue
            if len(cells) != len(header):
                problems.append(f"{place}: {len(cells)} cells; expected {len(header)}, one per column name")
                continue
            filled = {column: cell.strip() for column, cell in zip(header, cells, strict=True)}
            rows.append(_Row(place, {column: cell for column, cell in filled.items() if cell}))
    except csv.Error as error:
        problems.append(f"line {reader.line_num}: not CSV: {error}")
    return rows, problems


def _header_problems(header: Sequence[str]) -> list[str]:
    problems = [
        f"line 1: no column {c.name}; it is required" for c in COLUMNS if c.required and c.name not in header
    ]
    allowed = ", ".join(COLUMN_NAMES)
    problems += [f"line 1, column {n}: unknown; expected {allowed}" for n in header if n not in COLUMN_NAMES]
    problems += [
        f"line 1, column {n}: named twice" for n in sorted({n for n in header if header.count(n) > 1})
    ]
    return problems


def _json_rows(text: str) -> tuple[list[_Row], list[str]]:
    try:
        document: Any = json.loads(text.removeprefix("\ufeff"))
    except json.JSONDecodeError as error:
        return [], [f"line {error.lineno}, column {error.colno}: not JSON: {error.msg}"]
    except RecursionError:
        return [], ["line 1: nested too deep; expected a list of objects, one per profile"]
    except ValueError as error:  # a whole number of more than 4300 digits
        return [], [f"line 1: not JSON that can be read: {error}"]
    if not isinstance(document, list):
        return [], ["line 1: expected a list of objects, one per profile"]
    rows: list[_Row] = []
    problems: list[str] = []
    for number, item in enumerate(document, start=1):
        place = f"profile {number}"
        if not isinstance(item, dict):
            problems.append(f"{place}: expected an object with families, gpu_model and gpu_count")
            continue
        unknown = [key for key in item if key not in COLUMN_NAMES]
        problems += [
            f"{place}, column {shortened(key)}: unknown; expected {', '.join(COLUMN_NAMES)}"
            for key in unknown
        ]
        nested = [key for key, value in item.items() if _is_nested(value)]
        problems += [
            f"{place}, column {shortened(key)}: an object or a list of lists; expected a value or a list"
            for key in nested
        ]
        cells = {key: _json_cell(value) for key, value in item.items() if key not in (*unknown, *nested)}
        rows.append(_Row(place, {key: cell for key, cell in cells.items() if cell}))
    return rows, problems


def _is_nested(value: object) -> bool:
    parts = value if isinstance(value, list) else ()
    return isinstance(value, dict) or any(isinstance(part, list | dict) for part in parts)


def _json_cell(value: object) -> str:
    if isinstance(value, list):
        return join_parts(_json_cell(part) for part in value)
    return write_cell(value).strip()


def _profile(row: _Row, name: str, now_s: float, problems: list[str]) -> Profile | None:
    known = len(problems)
    values: dict[str, Any] = {}
    for column in COLUMNS:
        cell = row.cells.get(column.name)
        if cell is None:
            if column.required:
                problems.append(f"{row.place}, column {column.name}: empty; expected {column.meaning}")
            continue
        try:
            values[column.name] = column.read(cell)
        except CellError as error:
            problems.append(f"{row.place}, column {column.name}: {shown(cell)}; expected {error}")
    if len(problems) == known:
        problems.extend(_contradictions(row, values))
    if len(problems) > known:
        return None
    try:
        return _built(values, name, now_s)
    except InvalidProfileError as error:
        problems.append(f"{row.place}: {error}")
        return None


def _contradictions(row: _Row, values: Mapping[str, Any]) -> Iterable[str]:
    families = values["families"]
    alone = len(families) == 1
    for column in SET_ONLY if alone else SOLO_ONLY:
        if column in values:
            yield f"{row.place}, column {column}: only for {'a set of families' if alone else 'one family'}"
    if alone:
        if "unit_s" not in values and "power_w" not in values and "memory_peak_mib" not in values:
            yield f"{row.place}: no number; expected at least one of unit_s, power_w, memory_peak_mib"
        return
    slowdowns = values.get("slowdowns", ())
    if len(slowdowns) != len(families):
        yield (
            f"{row.place}, column slowdowns: {len(slowdowns)} numbers; "
            f"expected {len(families)}, one per family in the order of families"
        )
    of_family: dict[str, float] = {}
    for family, slowdown in zip(families, slowdowns, strict=False):
        if of_family.setdefault(family, slowdown) != slowdown:
            yield f"{row.place}, column slowdowns: two values for {family!r}; expected one per family name"


def _built(values: Mapping[str, Any], name: str, now_s: float) -> Profile:
    families: tuple[str, ...] = values["families"]
    shared = {
        "gpu_model": values["gpu_model"],
        "gpu_count": values["gpu_count"],
        "samples": values.get("samples", 0),
        "scope": PowerScope(values.get("scope", PowerScope.NODE.value)),
        "source": ProfileSource.IMPORTED,
        "updated_s": values.get("updated_at", now_s),
        "reference": values.get("reference", name),
        "stale": values.get("stale", False),
        "levels": values.get("levels", ()),
    }
    for column in ("power_w", "utilisation_pct", "utilisation_max_pct", "memory_utilisation_pct"):
        shared[column] = values.get(column)
    if len(families) == 1:
        solo = SoloProfile(family=families[0], **shared)
        own: dict[str, Any] = {column: values.get(column) for column in SOLO_ONLY}
        return replace(solo, **own)
    return CoallocationProfile(
        families=family_set(families),
        slowdowns=dict(zip(families, values["slowdowns"], strict=True)),
        spread=values.get("spread"),
        undone=values.get("undone", 0),
        **shared,
    )
