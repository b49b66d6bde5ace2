"""The document of all reasons for waiting, made from the enum so that it cannot drift from it.

``python -m airflow_provider_eaco.provider.reference > docs/reference/reasons.md`` writes it anew.
"""

from __future__ import annotations

import re
import sys

from airflow_provider_eaco.core.model.decision import Reason
from airflow_provider_eaco.provider.explain import NOT_DECIDED, NOT_DECIDED_REMEDY
from airflow_provider_eaco.provider.shown import UNKNOWN

_AT_ONCE = (
    f"`{Reason.EXCEEDS_POOL.code}`, `{Reason.DEADLINE_UNREACHABLE.code}` and a request that cannot be read "
    f"(`{Reason.MISCONFIGURED.code}`)"
)
_HEAD = f"""\
# Reasons

<!-- Made by `python -m airflow_provider_eaco.provider.reference`; change `core.model.decision.Reason`. -->

Why a task is not running yet. Of several reasons the most severe is shown first, and all are kept;
this page lists them in that order. `airflow eaco why TASK` and `airflow eaco queue` show code and
sentence, and Airflow's audit log the same sentence, with the numbers of the case in place of the
names in braces. A number that nobody knows reads `{UNKNOWN}`.

{_AT_ONCE} fail the task at once,
`{Reason.NO_SUCH_GPU.code}` after `[eaco] reject_after` seconds. With every other reason the task keeps
waiting, without a time-out; so do all tasks of a pool whose policy or ordering fails, which is
`{Reason.MISCONFIGURED.code}` too.

| code | it applies when | what would change it |
| --- | --- | --- |
"""

_TAIL = f"""
A task that no scheduler has looked at yet has the code `{UNKNOWN}`: {NOT_DECIDED};
{NOT_DECIDED_REMEDY}.
"""


def reasons_reference() -> str:
    """Return the document: one row per reason, the most severe first."""
    rows = [
        f"| `{r.code}` | {_without_formats(r.sentence)} | {_without_formats(r.remedy)} |\n" for r in Reason
    ]
    return _HEAD + "".join(rows) + _TAIL


def _without_formats(sentence: str) -> str:
    return re.sub(r"\{(\w+):[^}]*\}", r"{\1}", sentence)


if __name__ == "__main__":
    sys.stdout.write(reasons_reference())
