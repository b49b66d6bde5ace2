"""Airflow's public API, as far as tests and the demo speak to it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import requests

from harness.errors import HarnessError

_TIMEOUT_S = 30.0


class AirflowApi:
    """Speaks to ``/api/v2`` of the API server at ``base_url`` as an administrator."""

    def __init__(self, base_url: str) -> None:
        self.base_url = base_url
        self._session = requests.Session()
        self._session.trust_env = False  # a proxy of the surroundings must not see what stays on loopback

    def log_in(self, username: str = "", password: str = "") -> None:
        """Fetch a token; every later call carries it. Without a name, where everybody is an administrator."""
        address, body = f"{self.base_url}/auth/token", {"username": username, "password": password}
        if username:
            answer = self._session.post(address, json=body, timeout=_TIMEOUT_S)
        else:
            answer = self._session.get(address, timeout=_TIMEOUT_S)
        answer.raise_for_status()
        self._session.headers["Authorization"] = f"Bearer {answer.json()['access_token']}"

    def close(self) -> None:
        """Close the connections."""
        self._session.close()

    def answers(self, path: str) -> bool:
        """Tell whether a GET of ``path`` (from the root of the server) gives 200 now."""
        try:
            return self._session.get(f"{self.base_url}{path}", timeout=_TIMEOUT_S).status_code == 200
        except (requests.ConnectionError, requests.Timeout):
            return False

    def shown(self, path: str) -> Any:
        """Return the JSON that a GET of ``path`` (from the root of the server) gives.

        :raises HarnessError: for an error status, with the server's text.
        """
        answer = self._session.get(f"{self.base_url}{path}", timeout=_TIMEOUT_S)
        if not answer.ok:
            raise HarnessError(f"GET {path}: {answer.status_code} {answer.text}")
        return answer.json()

    def post(self, path: str) -> Any:
        """Return the JSON that a POST to ``path`` (from the root of the server) without a body gives.

        :raises HarnessError: for an error status, with the server's text.
        """
        answer = self._session.post(f"{self.base_url}{path}", timeout=_TIMEOUT_S)
        if not answer.ok:
            raise HarnessError(f"POST {path}: {answer.status_code} {answer.text}")
        return answer.json()

    def call(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None = None,
        parameters: Mapping[str, str | int] | None = None,
    ) -> Any:
        """Call ``/api/v2`` + ``path`` and return the answer's JSON, ``None`` for an empty answer.

        :raises HarnessError: for an error status, with the server's text.
        """
        answer = self._session.request(
            method, f"{self.base_url}/api/v2{path}", json=body, params=parameters, timeout=_TIMEOUT_S
        )
        if not answer.ok:
            raise HarnessError(f"{method} {path}: {answer.status_code} {answer.text}")
        return answer.json() if answer.content else None

    def trigger(self, dag_id: str, run_id: str, conf: Mapping[str, Any]) -> None:
        """Queue a run of a DAG that the API server knows."""
        body = {"dag_run_id": run_id, "logical_date": None, "conf": conf}
        self.call("POST", f"/dags/{dag_id}/dagRuns", body)

    def run_state(self, dag_id: str, run_id: str) -> str:
        """Return the state of a run."""
        return str(self.call("GET", f"/dags/{dag_id}/dagRuns/{run_id}")["state"])

    def task_instances(self, dag_id: str, run_id: str) -> list[dict[str, Any]]:
        """Return all task instances of a run as the API shows them, mapped ones expanded."""
        path = f"/dags/{dag_id}/dagRuns/{run_id}/taskInstances"
        found: list[dict[str, Any]] = []
        while True:
            page = self.call("GET", path, parameters={"limit": 100, "offset": len(found)})
            found += page["task_instances"]
            if len(found) >= page["total_entries"] or not page["task_instances"]:
                return found

    def set_state(self, dag_id: str, run_id: str, task_id: str, state: str, map_index: int = -1) -> None:
        """Mark a task instance ``success``, ``failed`` or ``skipped``, as a user does in the UI."""
        path = f"/dags/{dag_id}/dagRuns/{run_id}/taskInstances/{task_id}"
        path += "" if map_index < 0 else f"/{map_index}"
        self.call("PATCH", path, {"new_state": state})

    def clear(self, dag_id: str, run_id: str, *task_ids: str) -> None:
        """Clear these tasks of a run, whatever their state, as a user does in the UI."""
        body = {"dag_run_id": run_id, "task_ids": list(task_ids), "dry_run": False, "only_failed": False}
        self.call("POST", f"/dags/{dag_id}/clearTaskInstances", body)

    def set_pool(self, name: str, slots: int) -> None:
        """Create the pool, or change the number of its slots."""
        pool = {"name": name, "slots": slots, "include_deferred": False}
        try:
            self.call("POST", "/pools", pool)
        except HarnessError:
            self.call("PATCH", f"/pools/{name}", pool)

    def logs(self, dag_id: str, run_id: str, task_id: str, try_number: int = 1, map_index: int = -1) -> str:
        """Return the log of one try as text, one event a line."""
        path = f"/dags/{dag_id}/dagRuns/{run_id}/taskInstances/{task_id}/logs/{try_number}"
        answer = self.call("GET", path, parameters={"map_index": map_index, "full_content": "true"})
        content = answer["content"]
        return content if isinstance(content, str) else "\n".join(_log_line(line) for line in content)


def _log_line(line: object) -> str:
    if not isinstance(line, dict):
        return str(line)
    rest = " ".join(f"{key}={value}" for key, value in line.items() if key not in {"event", "timestamp"})
    return f"{line.get('timestamp') or ''} {line.get('event')} {rest}".strip()
