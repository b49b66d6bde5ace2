"""Readers of traces: our own file, and the logs that other projects have published.

Each reader turns one text into a :class:`~airflow_provider_eaco.simulator.trace.Trace` and tells by one
message what is wrong with it. What a log holds besides jobs that ran on GPUs (pods without a GPU, jobs that
never started) is left out and counted, not hidden.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from airflow_provider_eaco.simulator.readers import helios, itp, openb, own, philly
from airflow_provider_eaco.simulator.readers.table import text_of
from airflow_provider_eaco.simulator.trace import Trace, TraceError

AUTO = "auto"

Reader = Callable[[str, str], Trace]

READERS: Mapping[str, Reader] = {
    "eaco": own.read,
    "philly-json": philly.read_job_log,
    "philly-csv": philly.read_csv,
    "helios": helios.read,
    "itp": itp.read,
    "openb": openb.read,
}

# A file is taken for the first format whose columns its header has.
_HEADERS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("helios", helios.TELLING),
    ("openb", openb.TELLING),
    ("itp", itp.TELLING),
    ("philly-csv", philly.TELLING),
)


def read_trace(path: Path, trace_format: str = AUTO) -> Trace:
    """Return the jobs of the file.

    :param trace_format: one of :data:`READERS`, or ``auto``: JSON is Philly's job log, a CSV is known by its
        header and otherwise our own.
    :raises TraceError: if the file cannot be read as that; the message names file, line, column and what was
        expected.
    """
    text = text_of(path)
    if trace_format == AUTO:
        trace_format = _format_of(text)
    if trace_format not in READERS:
        allowed = ", ".join([AUTO, *READERS])
        raise TraceError(str(path), f"unknown format {trace_format!r}; expected one of {allowed}")
    return READERS[trace_format](str(path), text)


def _format_of(text: str) -> str:
    if text.lstrip()[:1] in {"[", "{"}:
        return "philly-json"
    header = {name.strip() for name in text.partition("\n")[0].split(",")}
    return next((name for name, telling in _HEADERS if header.issuperset(telling)), "eaco")
