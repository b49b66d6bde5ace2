"""What the demo prints: the cluster while it runs, the tables at the end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.table import Table

from airflow_provider_eaco.core.lifecycle import JobPhase
from airflow_provider_eaco.core.ports import JobRecord
from airflow_provider_eaco.store.read_model import Overview
from demo.figures import PolicyFigures, TaskRow

_J_PER_KWH = 3.6e6
# What demo/dags asks for.
MAX_STRETCH = 1.10


def cluster_table(overview: Overview, policy: str, epochs: int) -> Table:
    """Return the running jobs of every node with their co-residents and the node's present draw."""
    table = Table(title=f"{policy}: who trains where with whom", title_justify="left", expand=False)
    for column in ("node", "watts", "training", "epochs", "state", "beside"):
        table.add_column(column)
    record_of = {record.job.job_id: record for record in overview.view.jobs}
    for node in sorted(overview.view.nodes, key=lambda each: each.name):
        leases = [lease for lease in overview.view.leases if lease.placement.node == node.name]
        names = {lease.job_id: _name(record_of.get(lease.job_id)) for lease in leases}
        watts = _watts([overview.readings.get(gpu.uuid) for gpu in node.gpus])
        for number, lease in enumerate(leases):
            record = record_of.get(lease.job_id)
            done = "?" if record is None else str(record.job.progress.units_done)
            others = ", ".join(name for job_id, name in names.items() if job_id != lease.job_id)
            table.add_row(
                "" if number else node.name,
                "" if number else watts,
                names[lease.job_id],
                f"{done}/{epochs}",
                str(lease.state),
                others or "alone",
            )
        if not leases:
            table.add_row(node.name, watts, "idle", "", "", "")
    waiting = [entry for entry in overview.queue if entry.record.phase is JobPhase.WAITING]
    for entry in waiting[:1]:
        findings = () if entry.decision is None else entry.decision.decision.findings
        why = findings[0].text if findings else "not planned yet"
        table.caption = f"{len(waiting)} waiting; {_name(entry.record)}: {why}"
    return table


def task_table(rows: Sequence[TaskRow]) -> Table:
    """Return one line per task and policy."""
    table = Table(
        title="Tasks (device time and energy of the simulated nodes)",
        title_justify="left",
        caption="stretch: time on GPUs / time that the same work takes alone; each task allows "
        f"{MAX_STRETCH:.2f}. A set that looks good is tried for an epoch; if it turns out slow, its members "
        "may end above\nit, and the one that joined last pauses until it is started again.",
        caption_justify="left",
    )
    for column in ("policy", "task", "node", "co-residents"):
        table.add_column(column)
    for column in (
        "alone s/epoch",
        "shared",
        "stretch",
        "paused h",
        "energy kWh",
        "accuracy",
        "starts",
        "try",
    ):
        table.add_column(column, justify="right")
    for row in rows:
        table.add_row(
            row.policy,
            row.task_id,
            row.node,
            ", ".join(row.residents) or "none",
            f"{row.epoch_alone_s:.0f}",
            "" if row.epoch_shared_s is None else f"{row.epoch_shared_s:.0f}",
            f"{row.stretch:.3f}",
            f"{row.paused_s / 3600:.2f}" if row.starts > 1 else "",
            f"{row.energy_j / _J_PER_KWH:.2f}",
            "unknown" if row.accuracy is None else f"{row.accuracy:.3f}",
            str(row.starts),
            str(row.try_number),
        )
    return table


def policy_table(figures: Mapping[str, PolicyFigures]) -> Table:
    """Return the comparison of the policies, the first one being what the others are measured against."""
    table = Table(
        title="Policies (simulated time)",
        title_justify="left",
        caption="allocated utilisation: GPU time with at least one task / all GPU time.\n"
        "mean stretch: from first start to last end, pauses included / the same work alone.",
        caption_justify="left",
    )
    table.add_column("policy")
    for column in ("energy kWh", "makespan h", "allocated utilisation", "mean stretch", "shared", "undone"):
        table.add_column(column, justify="right")
    base: PolicyFigures | None = None
    for name, each in figures.items():
        base = base or each
        table.add_row(
            name,
            f"{each.energy_j / _J_PER_KWH:.2f}{_change(each.energy_j, base.energy_j)}",
            f"{each.makespan_s / 3600:.2f}{_change(each.makespan_s, base.makespan_s)}",
            f"{each.allocated_utilisation:.1%}",
            f"{each.mean_stretch:.4f}",
            f"{each.coallocated} of {each.tasks}",
            str(each.undone),
        )
    return table


def _change(value: float, base: float) -> str:
    return "" if value is base else f" ({value / base - 1:+.1%})"


def _name(record: JobRecord | None) -> str:
    return "unknown" if record is None else record.job.order.task_id


def _watts(readings: Sequence[object]) -> str:
    powers = [getattr(reading, "power_w", None) for reading in readings]
    known = [power for power in powers if power is not None]
    return f"{sum(known):.0f} W" if powers and len(known) == len(powers) else "unknown"
