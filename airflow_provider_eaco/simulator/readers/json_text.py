"""JSON with places, read with the same complaints for every file."""

from __future__ import annotations

import json
from typing import Any

from airflow_provider_eaco.simulator.trace import TraceError


def json_of(source: str, text: str, expected: str) -> Any:
    """Return the value of a JSON text.

    :param expected: what the file should hold, for messages.
    :raises TraceError: with line and column of what is no JSON.
    """
    if not text.strip():
        raise TraceError(source, f"the file is empty; expected {expected}")
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        cut = "; was it cut?" if error.pos >= len(text.rstrip()) - 1 else ""
        problem = f"not JSON: {error.msg}; expected {expected}{cut}"
        raise TraceError(source, problem, f"line {error.lineno}", str(error.colno)) from error
    except (ValueError, RecursionError) as error:
        # A number of thousands of digits, or thousands of brackets: valid JSON that nobody wrote on purpose.
        raise TraceError(source, f"JSON that cannot be held: {error}; expected {expected}") from error
