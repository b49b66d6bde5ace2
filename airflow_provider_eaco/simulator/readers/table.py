"""CSV with places: every complaint names file, line, column, what is there and what was expected."""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from airflow_provider_eaco.simulator.trace import TraceError


def text_of(path: Path) -> str:
    """Return the file's text without a byte order mark.

    :raises TraceError: if the file is not there, not readable or not UTF-8.
    """
    try:
        content = path.read_bytes()
    except OSError as error:
        raise TraceError(str(path), f"cannot be read: {error.strerror or error}") from error
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise TraceError(
            str(path), f"byte {content[error.start]:#04x}; expected text in UTF-8", f"line {line}"
        ) from error


@dataclass(frozen=True, slots=True)
class Row:
    """One line of a table. The methods read a cell or raise :class:`TraceError` with its place."""

    source: str
    line: int
    cells: Mapping[str, str]

    @property
    def place(self) -> str:
        return f"line {self.line}"

    def text(self, column: str) -> str:
        """Return the cell, empty if the table has no such column."""
        return self.cells.get(column, "")

    def name(self, column: str) -> str:
        """Return the cell, which must not be empty."""
        text = self.text(column)
        if not text or not text.isprintable():
            raise self.error(column, "a name in printable characters")
        return text

    def number(self, column: str, low: float, unit: str, *, above: bool = False) -> float:
        """Return the cell as a finite number of at least ``low``, or above it."""
        expected = f"a number {'above' if above else 'of at least'} {low:g}, in {unit}"
        try:
            value = float(self.text(column))
        except ValueError:
            raise self.error(column, expected) from None
        if not math.isfinite(value) or value < low or (above and value == low):
            raise self.error(column, expected)
        return value

    def whole(self, column: str, low: int) -> int:
        """Return the cell as a whole number of at least ``low``."""
        text = self.text(column)
        if not re.fullmatch(r"-?[0-9]{1,9}", text, re.ASCII) or int(text) < low:
            raise self.error(column, f"a whole number of at least {low}")
        return int(text)

    def clock(self, column: str) -> float:
        """Return the cell, a date and time without a zone, as seconds of that clock."""
        seconds = clock_s(self.text(column))
        if seconds is None:
            raise self.error(column, "a date and time such as 2020-04-01 13:05:00")
        return seconds

    def error(self, column: str, expected: str) -> TraceError:
        """Return the error that the cell is not what was expected."""
        text = self.text(column)
        found = repr(text) if text else "empty"
        return TraceError(self.source, f"{found}; expected {expected}", self.place, column)


def clock_s(text: str) -> float | None:
    """Return a date and time without a zone as seconds, ``None`` if the text is none.

    The zone is unknown and taken as UTC: only differences mean anything.
    """
    try:
        instant = datetime.fromisoformat(text)
    except ValueError:
        return None
    return instant.replace(tzinfo=instant.tzinfo or UTC).timestamp()


def rows_of(
    source: str,
    text: str,
    required: Sequence[str],
    allowed: Collection[str] | None = None,
    *,
    ends_with_line_break: bool = True,
) -> Iterator[Row]:
    """Yield the rows of a CSV with a header.

    :param required: columns that must be there.
    :param allowed: further columns that may be there; ``None`` for any.
    :param ends_with_line_break: whether a file of this kind always ends with one, so that its absence shows
        that the file was cut.
    :raises TraceError: for an empty file, a missing, unknown or repeated column, a line with too few or too
        many cells, a file that ends in the middle of a line, or without any row.
    """
    if not text.strip():
        raise TraceError(source, f"the file is empty; expected a header with {', '.join(required)}")
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    last_line = text.rstrip("\r\n").count("\n") + 1
    cut = ends_with_line_break and text[-1] not in "\r\n"
    seen = False
    try:
        header = [cell.strip() for cell in next(reader)]
        _check_header(source, header, required, allowed)
        for cells in reader:
            if not cells:
                continue
            seen = True
            last = reader.line_num >= last_line
            row = Row(source, reader.line_num, dict(zip(header, map(str.strip, cells), strict=False)))
            _check_whole(row, header, len(cells), last=last, cut=cut)
            yield row
    except csv.Error as error:
        raise TraceError(source, f"not CSV: {error}; was it cut?", f"line {reader.line_num}") from error
    if not seen:
        raise TraceError(source, "no job; expected at least one line after the header", "line 2")


def _check_header(
    source: str, header: Sequence[str], required: Sequence[str], allowed: Collection[str] | None
) -> None:
    for name in required:
        if name not in header:
            expected = f"expected {', '.join(required)}"
            raise TraceError(source, f"no such column in the header; {expected}", "line 1", name)
    for name in header:
        if header.count(name) > 1:
            raise TraceError(source, "named twice; expected every column once", "line 1", repr(name))
        if allowed is not None and name not in required and name not in allowed:
            expected = ", ".join([*required, *allowed])
            raise TraceError(source, f"unknown; expected {expected}", "line 1", repr(name))


def _check_whole(row: Row, header: Sequence[str], cells: int, *, last: bool, cut: bool) -> None:
    if cells != len(header):
        hint = " (the file ends here: was it cut?)" if last else ""
        problem = f"{cells} cells; expected {len(header)}, one per column of line 1{hint}"
        raise TraceError(row.source, problem, row.place, header[min(cells, len(header)) - 1])
    if cut and last:
        problem = "the file ends inside this line; expected a line break after its last cell"
        raise TraceError(row.source, f"{problem} (was it cut?)", row.place, header[-1])


class Ids:
    """The ids seen so far."""

    def __init__(self) -> None:
        self._place_of: dict[str, str] = {}

    def take(self, source: str, job_id: str, place: str, column: str = "job_id") -> str:
        """Return ``job_id`` if it is new and the files of a run can hold it.

        :raises TraceError: naming where it stood before, or what an id may not have: ``;`` stands between
            the ids of residents, and blanks at its ends are not read back.
        """
        if ";" in job_id or job_id != job_id.strip():
            problem = f"{job_id!r}; expected an id without ';', and without blanks at its ends"
            raise TraceError(source, problem, place, column)
        if job_id in self._place_of:
            problem = f"{job_id!r} stands in {self._place_of[job_id]} already; expected every id once"
            raise TraceError(source, problem, place, column)
        self._place_of[job_id] = place
        return job_id
