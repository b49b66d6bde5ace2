"""What a node must not forget when its worker dies: which runs it has begun, in a file of its own.

A run is in the file before its process exists, so that a worker that was killed at any moment finds each of
its runs again by the claim that the run's keeper holds, or knows that there is none.
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
from collections.abc import Collection
from pathlib import Path
from typing import IO

from airflow_provider_eaco.core.model.errors import EacoError

log = logging.getLogger(__name__)

Run = tuple[str, int]  # job id, token


class WorkerRunsError(EacoError):
    """A worker of this node runs on this machine already."""


class RunRegister:
    """The runs of one node on this machine; one worker at a time holds it.

    :param folder: made if need be, for its owner alone.
    :raises WorkerRunsError: if another worker of this node holds it.
    :raises OSError: if the files cannot be made.
    """

    def __init__(self, folder: Path, node: str) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._path = folder / f"worker-{node}.json"
        self._lock: IO[str] = (folder / f"worker-{node}.lock").open("w")
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._lock.close()
            raise WorkerRunsError(f"a worker of node {node!r} runs on this machine already") from None
        self._runs = self._load()

    @property
    def runs(self) -> frozenset[Run]:
        """All runs that may live."""
        return frozenset(self._runs)

    def add(self, run: Run) -> None:
        """Note a run that is about to begin.

        :raises OSError: if that cannot be written; then it is not to begin.
        """
        self._store(self._runs | {run})
        self._runs.add(run)

    def drop(self, runs: Collection[Run]) -> None:
        """Forget runs that are gone."""
        left = self._runs - set(runs)
        if left == self._runs:
            return
        self._runs = left
        try:
            self._store(left)
        except OSError as error:  # the next worker finds that they are gone
            log.warning("The register of runs cannot be written: path=%s error=%s", self._path, error)

    def close(self) -> None:
        """Let another worker take it."""
        self._lock.close()

    def _load(self) -> set[Run]:
        try:
            rows = json.loads(self._path.read_text(encoding="utf-8"))
            return {(str(job_id), int(token)) for job_id, token in rows}
        except FileNotFoundError:
            return set()
        except (OSError, ValueError, TypeError) as error:
            log.warning("The register of runs cannot be read: path=%s error=%s", self._path, error)
            return set()

    def _store(self, runs: Collection[Run]) -> None:
        new = self._path.with_suffix(".new")
        with new.open("w", encoding="utf-8") as file:
            json.dump(sorted(runs), file)
            file.flush()
            os.fsync(file.fileno())
        new.replace(self._path)
