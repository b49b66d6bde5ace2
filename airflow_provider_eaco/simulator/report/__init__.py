"""Reports: from the files of one run or of several, one page to look at and its charts as PNG."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path

from airflow_provider_eaco.simulator.report.page import charts_of, page_of
from airflow_provider_eaco.simulator.report.png import write_png
from airflow_provider_eaco.simulator.report.results import RunResult, read_run
from airflow_provider_eaco.simulator.report.timeline import timeline_of
from airflow_provider_eaco.simulator.trace import TraceError
from airflow_provider_eaco.simulator.whole_file import whole_file

log = logging.getLogger(__name__)

__all__ = ["read_run", "write_report"]


def write_report(folder: Path, runs: Sequence[Path], command: str = "", images: bool = True) -> Path:
    """Write ``report.html`` into ``folder``, and with ``images`` the charts as PNG beside it.

    Without matplotlib there are no images, and a warning says so.

    :param runs: folders with the files of runs of one benchmark.
    :param command: what made the runs, for whoever wants to make them again.
    :return: the page.
    :raises TraceError: if the files of a run cannot be read, or the runs are not of one benchmark and seed.
    """
    results = [read_run(run) for run in runs]
    _check_alike(results)
    charts = charts_of(results)
    page = folder / "report.html"
    with whole_file(page) as partial:
        partial.write_text(page_of(results, charts, command), encoding="utf-8", newline="")
    if images:
        drawings = {name: drawing for name, (drawing, _) in charts.items()}
        if len(results) == 1:
            drawings["timeline"] = timeline_of(results[0]).drawing
        try:
            for name, drawing in drawings.items():
                write_png(drawing, folder / f"{name}.png")
        except ImportError:
            log.warning("no PNG plots: matplotlib is not installed (extra 'analysis')")
    return page


def _check_alike(results: Sequence[RunResult]) -> None:
    if not results:
        raise TraceError("report", "no run; expected at least one folder with the files of a run")
    for name in ("benchmark", "seed", "nodes"):
        first, *others = (result.summary.get(name) for result in results)
        for result, other in zip(results[1:], others, strict=True):
            if other != first:
                problem = f"{other!r}, but {results[0].folder} has {first!r}; expected runs of the same jobs"
                raise TraceError(str(result.folder / "summary.json"), problem, column=name)
