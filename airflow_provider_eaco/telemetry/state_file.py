"""The file in which the device model lives between callers: one JSON document, replaced atomically.

Every change is made under an advisory lock, so that any number of processes may come and go; reading needs
no lock, since the file that a reader opened is never changed. A process that dies at any point leaves the
document before or after its change. What cannot be read counts as missing: whoever knows the configuration
makes it anew, everybody else waits for that.
"""

from __future__ import annotations

import json
import logging
import os
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from typing import Any

from airflow_provider_eaco.core.model.errors import EacoError
from airflow_provider_eaco.telemetry.device_model import DeviceModel
from airflow_provider_eaco.telemetry.file_lock import lock_within
from airflow_provider_eaco.telemetry.history import History, Journal, history
from airflow_provider_eaco.telemetry.residents import Resident, ResidentSet, SimulatedNode

VERSION = 1
LOCK_TIMEOUT_S = 5.0

log = logging.getLogger(__name__)


class StateBusyError(EacoError):
    """Another process holds the simulated state's lock for too long; try again later."""


class StateFile:
    """The device model in the file ``path``, with its lock and its journal beside it."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = path.with_name(path.name + ".lock")
        self._new = path.with_name(path.name + ".new")
        self._journal = Journal(path.with_name(path.name + ".history"))

    def load(self) -> DeviceModel | None:
        """Return the model as it was last written, ``None`` if there is none that can be read."""
        try:
            content = self._path.read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            log.debug("simulated state cannot be read: path=%s error=%s", self._path, error)
            return None
        try:
            return decode(content)
        except (ValueError, TypeError, LookupError) as error:
            log.debug("simulated state is damaged: path=%s error=%s", self._path, error)
            return None

    def signature(self) -> tuple[int, int, int] | None:
        """Return what differs between two versions of the file (but for a rare accident), ``None`` if there
        is none that can be seen.
        """
        try:
            status = self._path.stat()
        except OSError:
            return None
        return status.st_ino, status.st_mtime_ns, status.st_size

    @contextmanager
    def change(
        self, wall_s: float, make: Callable[[], DeviceModel] | None = None
    ) -> Iterator[DeviceModel | None]:
        """Yield the model, advanced to ``wall_s``, and store what the block made of it.

        Without a readable file the model is what ``make`` returns, else ``None`` is yielded and nothing is
        stored. Nothing is stored if the block raises.

        :raises StateBusyError: if the lock is not free within :data:`LOCK_TIMEOUT_S`.
        :raises OSError: if the files cannot be written.
        """
        with self._locked():
            model = self.load()
            if model is None and make is not None:
                model = make()
            if model is not None:
                model.advance(wall_s)
            yield model
            if model is not None:
                self._store(model)

    def history(self, wall_s: float) -> History | None:
        """Return what happened since the state began, up to ``wall_s``; ``None`` without a state."""
        model = self.load()
        if model is None:
            return None
        model.advance(wall_s)
        finished = self._journal.read(model.generation, model.journal_count)
        return history(model.now_s, [*finished, *model.present_segments()])

    def _store(self, model: DeviceModel) -> None:
        self._journal.append(model.generation, model.journal_count, model.closed)
        model.journal_count += len(model.closed)
        model.closed = []
        # Readable and writable by all whom the umask allows: tasks may run as other users. The name is fixed:
        # only the holder of the lock writes, and what a killed one left is overwritten.
        self._new.write_bytes(encode(model))
        self._new.replace(self._path)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(self._lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            if not lock_within(descriptor, LOCK_TIMEOUT_S):
                raise StateBusyError(f"{self._lock} is locked by another process for {LOCK_TIMEOUT_S:.0f} s")
            yield
        finally:
            os.close(descriptor)


def encode(model: DeviceModel) -> bytes:
    """Return the document: the model's JSON on a line of its own, after its version and checksum."""
    body = json.dumps(_plain(model), separators=(",", ":"), allow_nan=False)
    checksum = zlib.crc32(body.encode())
    return f'{{"version":{VERSION},"checksum":{checksum},"model":\n{body}\n}}\n'.encode()


def decode(content: bytes) -> DeviceModel:
    """Return the model of a document.

    :raises ValueError: if it is damaged or of another version.
    """
    lines = content.split(b"\n")
    if len(lines) != 4:
        raise ValueError("not a whole document")
    head = json.loads(lines[0] + b"null}")
    if head["version"] != VERSION:
        raise ValueError(f"version {head['version']!r}, {VERSION} is understood")
    if head["checksum"] != zlib.crc32(lines[1]):
        raise ValueError("the checksum does not fit")
    return _model(json.loads(lines[1]))


def _plain(model: DeviceModel) -> dict[str, Any]:
    plain = _values(model)
    del plain["closed"]
    plain["nodes"] = [_values(node) for node in model.nodes]
    plain["residents"] = [_values(resident) for resident in model.residents.values()]
    plain["departed"] = [_values(resident) for resident in model.departed.values()]
    plain["sets"] = [_values(held) for held in model.sets]
    return plain


def _values(one: DeviceModel | SimulatedNode | Resident | ResidentSet) -> dict[str, Any]:
    # Not dataclasses.asdict(), which copies every value and takes several times as long.
    return {item.name: getattr(one, item.name) for item in fields(one)}


def _model(plain: dict[str, Any]) -> DeviceModel:
    residents = [_resident(row) for row in plain.pop("residents")]
    departed = [_resident(row) for row in plain.pop("departed")]
    nodes = tuple(
        SimulatedNode(**{**row, "gpu_uuids": tuple(row["gpu_uuids"])}) for row in plain.pop("nodes")
    )
    sets = [
        ResidentSet(
            **{
                **row,
                "gpu_uuids": tuple(row["gpu_uuids"]),
                "members": tuple((job_id, token) for job_id, token in row["members"]),
            }
        )
        for row in plain.pop("sets")
    ]
    return DeviceModel(
        nodes=nodes,
        sets=sets,
        residents={resident.key: resident for resident in residents},
        departed={resident.key: resident for resident in departed},
        **plain,
    )


def _resident(row: dict[str, Any]) -> Resident:
    return Resident(**{**row, "gpu_uuids": tuple(row["gpu_uuids"])})
