"""Prices and carbon intensities over time, from a CSV file or from a URL that gives one.

What cannot be read is unknown, so that nothing is shifted by it; the scheduler's log says so once. A URL is
asked by a thread of its own: a slow source costs no heartbeat anything.
"""

from __future__ import annotations

import csv
import io
import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path

from airflow_provider_eaco.core.model.energy_series import EnergySeries
from airflow_provider_eaco.core.model.snapshot import PoolState
from airflow_provider_eaco.provider.energy_settings import SeriesSource

INTERVAL_S = 600.0
TIMEOUT_S = 10.0
# Three years of quarters of an hour are less.
MAX_BYTES = 8 * 1024 * 1024
COLUMNS = ("time", "value")

log = logging.getLogger(__name__)


def parse_series(name: str, text: str) -> EnergySeries:
    """Return the series in the text of a CSV file with the columns ``time`` and ``value``.

    :raises ValueError: naming the line and what is expected there.
    """
    reader = csv.DictReader(io.StringIO(text.removeprefix("\ufeff")))
    missing = [column for column in COLUMNS if column not in (reader.fieldnames or ())]
    if missing:
        raise ValueError(f"line 1: no column {' and no column '.join(missing)}; expected time,value")
    steps = []
    for row in reader:
        try:
            steps.append((_instant_s(row["time"]), float(row["value"])))
        except (TypeError, ValueError) as error:
            raise ValueError(f"line {reader.line_num}: {error}") from error
    return EnergySeries(name, tuple(steps))


def _instant_s(text: str) -> float:
    at = datetime.fromisoformat(text.strip())
    if at.tzinfo is None:
        raise ValueError(f"time {text!r} has no offset; write 2026-12-01T00:00:00Z or +01:00")
    return at.timestamp()


class _File:
    """A file is read again when it was changed."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._seen: tuple[int, int] | None = None

    def is_due(self) -> bool:
        return self._stamp() != self._seen or self._seen is None

    def read(self) -> str:
        self._seen = self._stamp()
        if self._seen is not None and self._seen[1] > MAX_BYTES:
            raise ValueError(f"is larger than {MAX_BYTES} bytes")
        return self._path.read_text(encoding="utf-8")

    def _stamp(self) -> tuple[int, int] | None:
        try:
            found = self._path.stat()
        except OSError:
            return None
        return found.st_mtime_ns, found.st_size


class _Url:
    """A URL is asked every ``interval_s``, in a thread that begins with the first question."""

    def __init__(self, url: str, interval_s: float) -> None:
        self._url = url
        self._interval_s = interval_s
        self._answer: str | Exception | None = None
        self._is_news = False
        self._thread: threading.Thread | None = None
        self._closing = threading.Event()

    def is_due(self) -> bool:
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, daemon=True)
            self._thread.start()
        return self._is_news

    def read(self) -> str:
        self._is_news = False
        if isinstance(self._answer, Exception):
            raise self._answer
        return self._answer or ""

    def close(self) -> None:
        self._closing.set()

    def _run(self) -> None:
        while not self._closing.is_set():
            try:
                self._answer = _asked(self._url)
            except Exception as error:  # noqa: BLE001 - whatever it is, the series is not known now
                self._answer = error
            self._is_news = True
            self._closing.wait(self._interval_s)


def _asked(url: str) -> str:
    # Only who has such a source needs it.
    import requests

    with requests.get(url, timeout=TIMEOUT_S, stream=True) as answer:
        answer.raise_for_status()
        found = bytearray()
        for part in answer.iter_content(65536):
            found += part
            if len(found) > MAX_BYTES:
                raise ValueError(f"the answer is larger than {MAX_BYTES} bytes")
    return found.decode("utf-8")


class SeriesFeed:
    """The series of this process, as they are known now."""

    def __init__(self, sources: Sequence[SeriesSource], *, interval_s: float = INTERVAL_S) -> None:
        self._readers: list[tuple[SeriesSource, _File | _Url]] = [
            (source, _Url(source.place, interval_s) if source.is_http else _File(Path(source.place)))
            for source in sources
        ]
        self._known: dict[str, EnergySeries] = {}
        self._problems: dict[str, str] = {}

    def told(self, pools: Sequence[PoolState]) -> Sequence[PoolState]:
        """Return the pools with the series; what cannot be read is left out. Never raises."""
        if not self._readers:
            return pools
        series = self.current()
        return [replace(pool, series=series) for pool in pools] if series else pools

    def current(self) -> tuple[EnergySeries, ...]:
        """Return the series that are known."""
        for source, reader in self._readers:
            if reader.is_due():
                self._take(source, reader.read)
        return tuple(self._known[source.name] for source, _ in self._readers if source.name in self._known)

    def close(self) -> None:
        """Ask no source any more."""
        for _, reader in self._readers:
            if isinstance(reader, _Url):
                reader.close()

    def _take(self, source: SeriesSource, read: Callable[[], str]) -> None:
        try:
            self._known[source.name] = parse_series(source.name, read())
        except Exception as error:  # noqa: BLE001 - whatever it is, the series is not known now
            self._known.pop(source.name, None)
            problem = f"{type(error).__name__}: {error}"
            if self._problems.get(source.name) != problem:
                log.warning(
                    "The %s over time is not known, so nothing is shifted by it: source=%s cause=%s",
                    source.name,
                    source.place,
                    problem,
                )
            self._problems[source.name] = problem
        else:
            if self._problems.pop(source.name, None) is not None:
                log.info("The %s over time is known again: source=%s", source.name, source.place)
