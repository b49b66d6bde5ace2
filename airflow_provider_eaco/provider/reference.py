"""Documents made from the code, so that they cannot drift from it: reasons for waiting, configuration, REST.

``python -m airflow_provider_eaco.provider.reference reasons > docs/reference/reasons.md`` writes one anew,
``configuration``, ``metrics`` and ``rest`` the others.
"""

from __future__ import annotations

import re
import sys

from airflow_provider_eaco.core.model.decision import Reason
from airflow_provider_eaco.provider.explain import NOT_DECIDED, NOT_DECIDED_REMEDY
from airflow_provider_eaco.provider.metrics import METRICS
from airflow_provider_eaco.provider.options import OPTIONS, SECTION, Option
from airflow_provider_eaco.provider.shown import UNKNOWN

_HEAD = f"""\
# Reasons

<!-- Made by `python -m airflow_provider_eaco.provider.reference reasons`; change the enum. -->

Why a task is not running yet. Of several reasons the most severe is shown first, and all are kept;
this page lists them in that order. `airflow eaco why TASK` and `airflow eaco queue` show code and
sentence, and Airflow's audit log the same sentence, with the numbers of the case in place of the
names in braces. A number that nobody knows reads `{UNKNOWN}`.

`{Reason.EXCEEDS_POOL.code}` and `{Reason.DEADLINE_UNREACHABLE.code}` fail the task at once,
`{Reason.NO_SUCH_GPU.code}` after `[eaco] reject_after` seconds. With every other reason the task keeps
waiting, without a time-out.

`{Reason.MISCONFIGURED.code}` has a sentence for each case, which names what cannot be used and what follows:
a task's own request (that task fails at once), a pool's policy or ordering (all tasks of the pool wait), an
option of section `[{SECTION}]` or the provider's tables (all GPU tasks wait).

| code | it applies when | what would change it |
| --- | --- | --- |
"""

_TAIL = f"""
A task that no scheduler has looked at yet has the code `{UNKNOWN}`: {NOT_DECIDED};
{NOT_DECIDED_REMEDY}.
"""


_METRICS_HEAD = """\
# Metrics

<!-- Made by `python -m airflow_provider_eaco.provider.reference metrics`; change the list. -->

The executor sends these through Airflow's own metrics (`[metrics] statsd_on` or `otel_on`), every ten
seconds, with Airflow's prefix (`airflow.` by default). Upper case stands for a name of the site's: a GPU
pool, an Airflow pool (of `eaco.energy_j`), a node, the code of a [reason](reasons.md); what is no letter,
digit, `-` or `_` in it becomes `_`. What nobody knows is not sent: a gap is unknown, not 0.

Gauges about the ledger are the same from every scheduler. Counters, the decision time and `eaco.held` come
from the scheduler that plans, `eaco.power_w` from the one on the node's machine.

| metric | kind | what it counts |
| --- | --- | --- |
"""

_METRICS_TAIL = """
[A dashboard for Grafana](grafana-dashboard.json) shows them as Prometheus' StatsD exporter names them without
a mapping (`airflow_eaco_waiting_eaco`).
"""

_CONFIGURATION_HEAD = f"""\
# Configuration

<!-- Made by `python -m airflow_provider_eaco.provider.reference configuration`; change the list. -->

The options of section `[{SECTION}]` in `airflow.cfg`; each can also be set by an environment variable,
`AIRFLOW__{SECTION.upper()}__HOLD_WINDOW` for example. The scheduler reads them when it starts. A value that
cannot be used holds the GPU tasks with the reason `{Reason.MISCONFIGURED.code}` and the option's name;
all other tasks run.
"""


def reasons_reference() -> str:
    """Return the document: one row per reason, the most severe first."""
    rows = [
        f"| `{r.code}` | {_without_formats(r.sentence)} | {_without_formats(r.remedy)} |\n" for r in Reason
    ]
    return _HEAD + "".join(rows) + _TAIL


def configuration_reference() -> str:
    """Return the document: one section per option, in the order of the list."""
    return _CONFIGURATION_HEAD + "".join(_option(option) for option in OPTIONS)


def metrics_reference() -> str:
    """Return the document: one row per metric, in the order of the list."""
    rows = [f"| `{each.name}` | {each.kind} | {each.text} |\n" for each in METRICS]
    return _METRICS_HEAD + "".join(rows) + _METRICS_TAIL


def rest_document() -> str:
    """Return the document: one section per route of the REST API, then one per object."""
    # Only this one needs the web framework.
    from airflow_provider_eaco.provider.api.app import create_app
    from airflow_provider_eaco.provider.api.reference import rest_reference

    return rest_reference(create_app().openapi())


def _option(option: Option) -> str:
    default = f"`{option.default}`" if option.default else "empty"
    example = (
        "" if option.example is None else f"\n```ini\n[{SECTION}]\n{option.name} = {option.example}\n```\n"
    )
    return f"\n## {option.name}\n\n{option.description}\n\nType {option.kind}, default {default}.\n{example}"


def _without_formats(sentence: str) -> str:
    return re.sub(r"\{(\w+):[^}]*\}", r"{\1}", sentence)


DOCUMENTS = {
    "reasons": reasons_reference,
    "configuration": configuration_reference,
    "metrics": metrics_reference,
    "rest": rest_document,
}

if __name__ == "__main__":
    if len(sys.argv) != 2 or sys.argv[1] not in DOCUMENTS:
        sys.exit(f"name one of: {', '.join(DOCUMENTS)}")
    sys.stdout.write(DOCUMENTS[sys.argv[1]]())
