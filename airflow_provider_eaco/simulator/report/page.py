"""The page ``report.html``: self-contained, no network, right in light and dark."""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence
from importlib.resources import files
from itertools import groupby
from typing import Any

from airflow_provider_eaco.simulator.bounds import distance_to_bound
from airflow_provider_eaco.simulator.report.charts import energy_chart, pareto_chart, wait_chart
from airflow_provider_eaco.simulator.report.drawing import Drawing, svg_of
from airflow_provider_eaco.simulator.report.results import RunResult
from airflow_provider_eaco.simulator.report.scales import energy_text, percent_text, time_text
from airflow_provider_eaco.simulator.report.timeline import Timeline, timeline_of

UNKNOWN = "\N{EN DASH}"


def reference_of(run: RunResult, runs: Sequence[RunResult]) -> RunResult | None:
    """Return FIFO exclusive in the run's accounting among ``runs``, ``None`` if it is not there.

    Nodes that the policy puts to sleep are held against those that sleep by the rule.
    """
    plain = (
        one
        for one in runs
        if (one.summary["policy"], one.summary["order"]) == ("exclusive", "fifo")
        and one.accounting == run.summary["accounting"]
    )
    return next(plain, None)


def by_accounting(runs: Sequence[RunResult]) -> list[tuple[str, list[RunResult]]]:
    """Return the runs of each accounting, always-on first."""
    ordered = sorted(runs, key=lambda run: run.accounting)
    return [(name, list(group)) for name, group in groupby(ordered, key=lambda run: run.accounting)]


def charts_of(runs: Sequence[RunResult]) -> dict[str, tuple[Drawing, str]]:
    """Return the charts by file name, each with its caption."""
    charts: dict[str, tuple[Drawing, str]] = {}
    groups = by_accounting(runs)
    for accounting, group in groups:
        suffix = "" if len(groups) == 1 else f"-{accounting}"
        charts[f"energy{suffix}"] = (
            energy_chart(group),
            (
                f"Energy of all nodes, accounting {accounting}. The mark is the least energy for this work "
                "at the run's own mean stretch, sleeping nodes included; idle and waking time is not."
            ),
        )
        reference = reference_of(group[0], runs)
        if group[0].curve:
            reference_j = group[0].curve[0][1] if reference is None else reference.energy_j["total"]
            named = "the work alone, without idle nodes" if reference is None else "FIFO exclusive"
            charts[f"pareto{suffix}"] = (
                pareto_chart(group, reference_j),
                (
                    f"100 % is the energy of {named}, accounting {accounting}. No schedule is below the "
                    "line while jobs run (dots); rings add idle, waking and sleeping nodes."
                ),
            )
    charts["wait"] = (
        wait_chart(groups[0][1]),
        f"Share of jobs that had started by then, accounting {groups[0][0]}.",
    )
    return charts


def page_of(runs: Sequence[RunResult], charts: dict[str, tuple[Drawing, str]], command: str = "") -> str:
    """Return the page for runs of one benchmark, with these charts of theirs."""
    first = runs[0].summary
    title = f"{first['benchmark']}: {', '.join(dict.fromkeys(run.label for run in runs))}"
    headings = {"energy": "Energy by state", "pareto": "Energy against stretch", "wait": "Waits"}
    sections = []
    for name, (drawing, caption) in charts.items():
        kind, _, accounting = name.partition("-")
        heading = headings[kind] + (f", {accounting}" if accounting else "")
        sections.append(_figure(heading, svg_of(drawing), caption))
    body = [
        f"<h1>{html.escape(str(first['benchmark']))}</h1>",
        _lead(runs),
        _tiles(runs) if len(runs) == 1 else "",
        *sections,
        *_timelines(runs),
        _table(runs),
        _footer(runs, command),
    ]
    template = files(__package__).joinpath("assets/report.html").read_text(encoding="utf-8")
    style = files(__package__).joinpath("assets/report.css").read_text(encoding="utf-8")
    return (
        template.replace("{{title}}", html.escape(title))
        .replace("{{style}}", style)
        .replace("{{body}}", "\n".join(part for part in body if part))
    )


def _lead(runs: Sequence[RunResult]) -> str:
    first = runs[0].summary
    cluster = f"{first.get('nodes', '?')} nodes with {first.get('gpus_per_node', '?')} GPUs"
    facts = f"{cluster}, {len(runs[0].jobs):,} jobs, seed {first['seed']}."
    told = "Simulated with the admission loop and the policies that run live."
    return f'<p class="lead">{html.escape(facts)} {told}</p>'


def _figure(heading: str, svg: str, caption: str) -> str:
    return (
        f"<section><h2>{html.escape(heading)}</h2><figure>{svg}"
        f"<figcaption>{html.escape(caption)}</figcaption></figure></section>"
    )


def _timelines(runs: Sequence[RunResult]) -> Iterable[str]:
    group = by_accounting(runs)[-1][1]
    for run in group:
        timeline = timeline_of(run)
        left_out = f" Left out: {timeline.left_out}." if timeline.left_out else ""
        caption = (
            f"{run.label}, accounting {run.accounting}: one row for each set of GPUs, a bar for each job, "
            f"split among jobs that share; colours are families.{left_out}"
        )
        if len(group) == 1:
            yield _figure("Who shares which GPUs", svg_of(timeline.drawing), caption)
        else:
            yield _folded(run, timeline, caption)


def _folded(run: RunResult, timeline: Timeline, caption: str) -> str:
    return (
        f"<details><summary>Who shares which GPUs: {html.escape(run.label)}</summary>"
        f"<figure>{svg_of(timeline.drawing)}<figcaption>{html.escape(caption)}</figcaption></figure></details>"
    )


def _tiles(runs: Sequence[RunResult]) -> str:
    run = runs[0]
    wait, gap = run.summary["wait_s"], (run.summary.get("gaps") or {}).get("energy_j_at_stretch")
    tiles = [
        (
            "energy",
            energy_text(run.energy_j["total"]),
            "" if gap is None else f"{100 * gap:.1f} % above the bound",
        ),
        ("mean stretch", percent_text(run.mean_stretch - 1, 2), "run time against running alone"),
        ("mean wait", time_text(wait["mean"]), f"95 % within {time_text(wait['p95'])}"),
        (
            "GPUs allocated",
            _share(run.summary.get("allocated_utilisation")),
            f"makespan {time_text(run.summary.get('makespan_s') or 0.0)}",
        ),
        (
            "limit misses",
            str(run.summary.get("limit_misses", UNKNOWN)),
            f"{run.summary.get('trials', UNKNOWN)} trials, {run.summary.get('undone', UNKNOWN)} undone",
        ),
    ]
    cells = "".join(
        f'<div class="tile"><span>{html.escape(name)}</span><b>{html.escape(value)}</b>'
        f"<small>{html.escape(note)}</small></div>"
        for name, value, note in tiles
    )
    return f'<div class="tiles">{cells}</div>'


def _share(value: Any) -> str:
    return UNKNOWN if value is None else f"{100 * value:.1f} %"


COLUMNS = (
    "run",
    "accounting",
    "energy",
    "against FIFO exclusive",
    "distance to bound",
    "within job limits",
    "mean stretch",
    "p95",
    "max",
    "mean wait",
    "p95 wait",
    "mean JCT",
    "allocated",
    "limit misses",
)


def table_rows(runs: Sequence[RunResult]) -> list[tuple[str, ...]]:
    """Return one row of :data:`COLUMNS` per run, as a page or a terminal shows it."""
    rows: list[tuple[str, ...]] = []
    for accounting, group in by_accounting(runs):
        reference = reference_of(group[0], runs)
        rows += [(run.label, accounting, *_figures(run, reference)) for run in group]
    return rows


def _figures(run: RunResult, reference: RunResult | None) -> tuple[str, ...]:
    summary, total_j = run.summary, run.energy_j["total"]
    saved = UNKNOWN
    distances = [UNKNOWN, UNKNOWN]
    if reference is not None:
        reference_j = reference.energy_j["total"]
        saved = percent_text(total_j / reference_j - 1)
        distances = [
            UNKNOWN
            if bound_j is None
            else f"{100 * distance_to_bound(total_j, bound_j, reference_j):.1f} points"
            for bound_j in (run.bound_at_stretch_j, run.bound_within_limits_j)
        ]
    stretch, wait = summary["stretch"], summary["wait_s"]
    jct_s = (summary.get("jct_s") or {}).get("mean")
    return (
        energy_text(total_j),
        saved,
        *distances,
        percent_text(stretch["mean"] - 1, 2),
        percent_text(stretch["p95"] - 1),
        percent_text(stretch["max"] - 1),
        time_text(wait["mean"]),
        time_text(wait["p95"]),
        UNKNOWN if jct_s is None else time_text(jct_s),
        _share(summary.get("allocated_utilisation")),
        str(summary.get("limit_misses", UNKNOWN)),
    )


def _table(runs: Sequence[RunResult]) -> str:
    head = "".join(f"<th>{html.escape(name)}</th>" for name in COLUMNS)
    body = "\n".join(
        "<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in row) + "</tr>"
        for row in table_rows(runs)
    )
    return (
        f'<section><h2>All figures</h2><div class="wide"><table><thead><tr>{head}</tr></thead>'
        f"<tbody>{body}</tbody></table></div>"
        "<p>Mean stretch is weighted by work. The distance to the bound is a share of the energy of FIFO "
        "exclusive in the same accounting; within job limits the bound is that of schedules in which every "
        "job keeps its own limit, too.</p></section>"
    )


def _footer(runs: Sequence[RunResult], command: str) -> str:
    version = html.escape(str(runs[0].summary.get("version", "")))
    parts = [f"airflow-provider-eaco {version}".strip()]
    if command:
        parts.append(f"made by <code>{html.escape(command)}</code>")
    parts.append("every figure can be recomputed from jobs.csv, schedule.csv and nodes.csv beside this page")
    return f"<footer>{'; '.join(parts)}.</footer>"
