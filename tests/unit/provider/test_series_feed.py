"""Series of prices and carbon: files and URLs; what cannot be read is unknown, and is said once."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from airflow_provider_eaco.core.model.pool import PoolSettings
from airflow_provider_eaco.core.model.snapshot import PoolState
from airflow_provider_eaco.provider.energy_settings import SeriesSource
from airflow_provider_eaco.provider.series_feed import SeriesFeed, parse_series

CSV = "time,value\n2026-12-01T00:00:00Z,30\n2026-12-01T02:00:00+01:00,-5.5\n2026-12-01T03:00Z,0\n"
MIDNIGHT_S = 1_796_083_200.0
DEADLINE_S = 20.0


def test_a_csv_file_is_a_series_of_steps() -> None:
    """Instants have offsets; values may be negative, as prices are."""
    series = parse_series("price", CSV)
    assert series.steps == ((MIDNIGHT_S, 30.0), (MIDNIGHT_S + 3600, -5.5), (MIDNIGHT_S + 3 * 3600, 0.0))


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "no column time and no column value"),
        ("time,price\n", "no column value"),
        ("time,value\n2026-12-01T00:00:00,1\n", "line 2: time '2026-12-01T00:00:00' has no offset"),
        ("time,value\n2026-12-01T00:00Z,1\nsoon,1\n", "line 3: Invalid isoformat string"),
        ("time,value\n2026-12-01T00:00Z,dear\n", "line 2: could not convert"),
        ("time,value\n2026-12-01T00:00Z\n", "line 2: "),
        ("time,value\n2026-12-01T00:00Z,nan\n2026-12-01T01:00Z,1\n", "finite"),
        ("time,value\n2026-12-01T00:00Z,1\n", "too few"),
        ("time,value\n2026-12-01T01:00Z,1\n2026-12-01T00:00Z,1\n", "ascend"),
    ],
)
def test_what_is_no_series_is_refused_with_its_line(text: str, problem: str) -> None:
    """One error that says where and what."""
    with pytest.raises(ValueError, match=problem):
        parse_series("price", text)


def test_a_file_is_read_again_when_it_changes_and_pools_get_the_series(tmp_path: Path) -> None:
    """The pools are as before where nothing is known."""
    path = tmp_path / "price.csv"
    feed = SeriesFeed([SeriesSource("price", str(path))])
    pools = [PoolState(PoolSettings())]
    assert feed.told(pools) == pools
    path.write_text(CSV)
    (told,) = feed.told(pools)
    assert [each.at(MIDNIGHT_S) for each in told.series] == [30.0]
    path.write_text(CSV.replace(",30", ",40"))
    os.utime(path, (1, 1))
    (told,) = feed.told(pools)
    assert [each.at(MIDNIGHT_S) for each in told.series] == [40.0]
    path.unlink()
    assert feed.told(pools) == pools


def test_bad_data_is_said_once_and_nothing_is_known(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A broken file does not fill the log, one that works again is told."""
    caplog.set_level(logging.INFO, "airflow_provider_eaco.provider.series_feed")
    path = tmp_path / "price.csv"
    feed = SeriesFeed([SeriesSource("price", str(path))])
    for number in range(3):
        path.write_text("time,value\nsoon,1\n" + "\n" * number)
        assert feed.current() == ()
    (warning,) = [record.getMessage() for record in caplog.records]
    assert "price over time is not known, so nothing is shifted" in warning
    assert "line 2" in warning
    path.write_text(CSV)
    assert len(feed.current()) == 1
    assert "known again" in caplog.records[-1].getMessage()


@pytest.fixture
def answers() -> Iterator[tuple[str, list[tuple[int, str]]]]:
    """A server on loopback that gives the last answer of a list."""
    given: list[tuple[int, str]] = [(200, CSV)]

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            code, text = given[-1]
            self.send_response(code)
            self.end_headers()
            self.wfile.write(text.encode())

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/price.csv", given
    server.shutdown()
    thread.join()
    server.server_close()


def _wait_for(condition: Callable[[], bool]) -> None:
    until = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < until, "it did not come true"
        time.sleep(0.01)


def test_a_url_is_asked_in_the_background_and_again(
    answers: tuple[str, list[tuple[int, str]]], caplog: pytest.LogCaptureFixture
) -> None:
    """Nobody waits for it; a server's error or nonsense makes the series unknown until it is well again."""
    url, given = answers
    feed = SeriesFeed([SeriesSource("price", url)], interval_s=0.01)
    try:
        _wait_for(lambda: len(feed.current()) == 1)
        given.append((500, ""))
        _wait_for(lambda: feed.current() == ())
        given.append((200, "<html>"))
        _wait_for(lambda: feed.current() == () and "no column" in caplog.text)
        given.append((200, CSV))
        _wait_for(lambda: len(feed.current()) == 1)
    finally:
        feed.close()
    warnings = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert len(warnings) == 2
