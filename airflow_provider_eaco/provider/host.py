"""What the lanes need of the executor that they are part of, so that each can be tested without Airflow."""

from __future__ import annotations

from collections.abc import MutableMapping
from typing import Any, Protocol

from airflow_provider_eaco.provider.running import Event


class ExecutorHost(Protocol):
    """The executor, as its lanes see it. Keys are Airflow's workload keys."""

    @property
    def owner(self) -> str:
        """How rows of this executor are signed."""

    def queue(self) -> MutableMapping[Any, Any]:
        """Return the tasks that Airflow handed over and that are not started."""

    def renew_token(self, workload: Any) -> Any:
        """Return the workload with a token that lives from now on."""

    def note_running(self, key: Any, reference: str) -> None:
        """Count the workload as started; Airflow stores ``reference`` beside its task instance."""

    def note_ended(self, key: Any, event: Event, info: str | None = None) -> None:
        """Count the workload as gone and report ``event`` to the scheduler, with ``info`` if it failed."""

    def fail_queued(self, workload: Any, text: str) -> None:
        """Fail a task that was not started, with the reason in its log and in the audit log."""

    def fail_unstarted(self, key: Any, text: str) -> None:
        """Fail a callback or connection test that was not started, and take it out of its queue."""

    def tell(self, key: Any, event: str, text: str) -> None:
        """Write one line to Airflow's audit log, which its UI shows beside the task."""
