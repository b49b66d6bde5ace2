"""The verbs that show what is stored: status, queue, why, leases, nodes."""

from __future__ import annotations

from argparse import Namespace

from airflow_provider_eaco.provider.cli.console import (
    print_document,
    print_line,
    print_rows,
    print_section,
    reading,
)
from airflow_provider_eaco.provider.cli.facts import explain_story, explain_waiting, read_facts, starts_of
from airflow_provider_eaco.provider.cli.pool_rows import airflow_pool_rows, pool_rows, summary
from airflow_provider_eaco.provider.cli.rows import (
    NO_WORKER,
    columns,
    explanation_document,
    gpu_rows,
    lease_rows,
    node_rows,
    queue_row,
    told_limits,
)
from airflow_provider_eaco.provider.configuration_check import configuration_problems
from airflow_provider_eaco.provider.explain import in_words
from airflow_provider_eaco.provider.settings import load_settings
from airflow_provider_eaco.provider.shown import UNKNOWN

EMPTY_QUEUE = "no task waits"
NO_LEASES = "no task holds GPUs"
# A mapped sweep can have hundreds of tasks under one name; a person reads a few.
MAX_STORIES = 10

_FOR_PEOPLE = frozenset({"table", "plain"})


@reading
def status(args: Namespace) -> None:
    """Show pools, nodes, queue, power and energy."""
    facts = read_facts()
    totals = summary(facts.view, facts.readings, facts.energy_j)
    pools = [columns(row) for row in pool_rows(facts.view, facts.states)]
    airflow_pools = [columns(row) for row in airflow_pool_rows(facts.view, facts.states)]
    of_nodes = [columns(row) for row in node_rows(facts.view, facts.readings, facts.sleeping)]
    problems = configuration_problems(load_settings())
    if args.output not in _FOR_PEOPLE:
        document = {"problems": problems, "pools": pools, "airflow_pools": airflow_pools, "nodes": of_nodes}
        print_document({**columns(totals), **document}, args.output)
        return
    gpus = (
        f"{totals.gpus_used} of {totals.gpus} in use, {totals.gpus_unhealthy} unhealthy, "
        f"{totals.gpus_unknown} unknown; power {totals.power}"
    )
    for problem in problems:
        print_line(f"Configuration: {problem}")
    print_line(f"GPUs: {gpus if of_nodes else NO_WORKER}; recorded energy {totals.energy}")
    print_line(f"Tasks: {totals.running} hold GPUs, {totals.waiting} wait")
    print_section("GPU pools", pools, args.output, empty="no pools")
    print_section("Airflow pools", airflow_pools, args.output, empty="no pools")
    print_section("Nodes", of_nodes, args.output, empty=NO_WORKER)


@reading
def queue(args: Namespace) -> None:
    """List the waiting jobs in planned order, each with its reason."""
    from airflow_provider_eaco.provider.cli.airflow_facts import runs_of

    facts = read_facts()
    now_s = facts.view.now_s
    starts = starts_of(facts)
    run_of = runs_of(entry.record.job.job_id for entry in facts.queue)
    rows = [
        queue_row(
            explain_waiting(entry, now_s),
            entry.record.job.request,
            run_of.get(entry.record.job.job_id, UNKNOWN),
            starts.get(entry.record.job.job_id),
        )
        for entry in facts.queue
    ]
    print_rows(map(columns, rows), args.output, empty=EMPTY_QUEUE)


@reading
def why(args: Namespace) -> None:
    """Tell why a task waits, or what has become of it."""
    from airflow_provider_eaco.provider.cli.finding import find_jobs
    from airflow_provider_eaco.provider.wiring import open_store

    store = open_store()
    found = find_jobs(args.task, store.reads)
    now_s = store.clock.now_s()
    stories = [store.reads.story(record.job.job_id) for record in found[:MAX_STORIES]]
    nodes, book = store.ledger.view().nodes, store.profiles.book()
    told = [explain_story(story, now_s, nodes, book) for story in stories if story is not None]
    if args.output not in _FOR_PEOPLE:
        print_rows([explanation_document(each) for each in told], args.output)
        return
    for each in told:
        for line in in_words(each, now_s):
            print_line(line)
    if len(found) > MAX_STORIES:
        print_line(f"and {len(found) - MAX_STORIES} more; name one by its map index or job id")


@reading
def leases(args: Namespace) -> None:
    """List who holds which GPUs."""
    from airflow_provider_eaco.provider.cli.airflow_facts import runs_of

    facts = read_facts()
    run_of = runs_of(lease.job_id for lease in facts.view.leases)
    print_rows(map(columns, lease_rows(facts.view, run_of, facts.energy_of)), args.output, empty=NO_LEASES)


@reading
def nodes(args: Namespace) -> None:
    """List nodes and their GPUs."""
    facts = read_facts()
    of_nodes = [columns(row) for row in node_rows(facts.view, facts.readings, facts.sleeping)]
    limits = told_limits(facts.view, facts.limits)
    of_gpus = [columns(row) for row in gpu_rows(facts.view, facts.readings, limits)]
    if args.output not in _FOR_PEOPLE:
        documents = [
            {**node, "gpu_list": [gpu for gpu in of_gpus if gpu["node"] == node["node"]]} for node in of_nodes
        ]
        print_rows(documents, args.output)
        return
    print_rows(of_nodes, args.output, empty=NO_WORKER)
    if of_gpus:
        print_section("GPUs", of_gpus, args.output, empty="no GPUs")
