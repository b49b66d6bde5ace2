"""A machine with GPUs for tests: NVML's library, built from ``fake_nvml.c``, and the file it answers from.

pynvml finds the library by its name, so a test runs the real pynvml and our real adapter. Without a C
compiler such a test is skipped, and fails where CI is set.
"""

from __future__ import annotations

import atexit
import ctypes
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import pytest

CONTROL_VARIABLE = "EACO_FAKE_NVML"
SOURCE = Path(__file__).with_name("fake_nvml.c")
GIB = 2**30
MIB = 2**20


class NoCompilerError(RuntimeError):
    """There is nothing to build the library with."""


@cache
def build_library() -> Path:
    """Return the folder that has ``libnvidia-ml.so.1``, built once per process.

    :raises NoCompilerError: without a C compiler.
    """
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        raise NoCompilerError("NVML's test library needs a C compiler (gcc or cc)")
    folder = tempfile.TemporaryDirectory(prefix="eaco-nvml-", ignore_cleanup_errors=True)
    atexit.register(folder.cleanup)
    library = Path(folder.name) / "libnvidia-ml.so.1"
    flags = ["-std=gnu11", "-shared", "-fPIC", "-O1", "-Wall", "-Wextra", "-Werror"]
    subprocess.run(
        [compiler, *flags, f"-Wl,-soname,{library.name}", "-o", str(library), str(SOURCE)], check=True
    )
    return library.parent


def library_folder() -> Path:
    """Return :func:`build_library`'s folder; skip the test without a compiler, fail it in CI."""
    try:
        return build_library()
    except NoCompilerError as error:
        if os.environ.get("CI"):
            pytest.fail(str(error))
        pytest.skip(str(error))


def load_library() -> None:
    """Load the library into this process, where pynvml then finds it by its name."""
    ctypes.CDLL(str(library_folder() / "libnvidia-ml.so.1"))


def gpu_values(index: int, **values: Any) -> dict[str, Any]:
    """Return the values of an idle V100, changed by ``values``; ``None`` makes one "not supported"."""
    return {
        "uuid": f"GPU-{index:08x}-0000-4000-8000-000000000000",
        "name": "Tesla V100-SXM2-16GB",
        "bus": f"00000000:{0x10 + index:02X}:00.0",
        "total": 16 * GIB,
        "used": 3 * MIB,
        "reserved": 300 * MIB,
        "gpu_pct": 0,
        "memory_pct": 0,
        "power_mw": 42_000,
        "limit_mw": 300_000,
        "limit_min_mw": 150_000,
        "limit_max_mw": 300_000,
        "energy_mj": 1_000_000,
        "temperature": 34,
        "clocks_event": 1,
        **values,
    }


@dataclass
class FakeMachine:
    """What the library answers from. Change the fields, then :meth:`write`.

    ``gpus`` are values by index, ``partitions`` those of MIG instances by index and number. ``processes`` are
    ``(index, kind, pid, bytes, sm, partition)``, kind ``c`` or ``g``. ``xids`` are ``(index, number)`` in the
    order in which they happen; ``errors`` map a function to its code, or to its code by index; ``hangs`` are
    functions that do not return.
    """

    path: Path
    gpus: dict[int, dict[str, Any]] = field(default_factory=dict)
    partitions: dict[tuple[int, int], dict[str, Any]] = field(default_factory=dict)
    processes: list[tuple[Any, ...]] = field(default_factory=list)
    xids: list[tuple[int, int]] = field(default_factory=list)
    errors: dict[str, int | dict[int, int]] = field(default_factory=dict)
    hangs: set[str] = field(default_factory=set)
    init_code: int = 0

    def add_gpus(self, count: int, **values: Any) -> list[str]:
        """Add that many GPUs and return their UUIDs."""
        first = len(self.gpus)
        for index in range(first, first + count):
            self.gpus[index] = gpu_values(index, **values)
        return [self.gpus[index]["uuid"] for index in range(first, first + count)]

    def set(self, index: int, **values: Any) -> None:
        """Change values of one GPU and write."""
        self.gpus[index].update(values)
        self.write()

    def write(self) -> None:
        """Let the library answer as the fields say now; one change, never half of it."""
        text = "\n".join(self._lines()) + "\n"
        new = self.path.with_suffix(".new")
        new.write_text(text)
        new.replace(self.path)

    def limits_set(self) -> list[tuple[int, float]]:
        """Return every power limit that was set, as ``(index, watts)`` in the order in which it was."""
        path = self._limits
        index_of = {values["uuid"]: index for index, values in self.gpus.items()}
        lines = path.read_text().split("\n")[:-1] if path.exists() else []
        rows = (line.split() for line in lines)
        return [(index_of[uuid], int(milliwatts) / 1000) for uuid, milliwatts in rows]

    def limit_w(self, index: int) -> float:
        """Return the limit that the GPU has now."""
        own = [watts for one, watts in self.limits_set() if one == index]
        return own[-1] if own else float(self.gpus[index]["limit_mw"] / 1000)

    def put_limit(self, index: int, watts: float) -> None:
        """Set a limit as somebody else would, past every fault."""
        with self._limits.open("a") as file:
            file.write(f"{self.gpus[index]['uuid']} {round(watts * 1000)}\n")

    @property
    def _limits(self) -> Path:
        return self.path.with_name(self.path.name + ".limits")

    def _lines(self) -> Iterable[str]:
        yield f"init {self.init_code}"
        for index, values in self.gpus.items():
            yield from (f"gpu {index} {line}" for line in _named(values))
        for (index, number), values in self.partitions.items():
            yield from (f"mig {index} {number} {line}" for line in _named(values))
        for process in self.processes:
            index, kind, pid, used, sm, partition = (*process, None, None)[:6]
            yield f"process {index} {kind} {pid} {_shown(used)} {_shown(sm)} {_shown(partition)}"
        for sequence, (index, xid) in enumerate(self.xids, 1):
            yield f"xid {sequence} {index} {xid}"
        for function, code in self.errors.items():
            codes = code if isinstance(code, dict) else {None: code}
            yield from (f"error {function} {each} {_shown(index)}" for index, each in codes.items())
        yield from (f"hang {function} -" for function in self.hangs)

    def environment(self) -> dict[str, str]:
        """Return the variables with which a new process meets this machine."""
        folders = [str(library_folder()), os.environ.get("LD_LIBRARY_PATH", "")]
        return {
            CONTROL_VARIABLE: str(self.path),
            "LD_LIBRARY_PATH": os.pathsep.join(filter(None, folders)),
        }


def fake_machine(folder: Path, monkeypatch: pytest.MonkeyPatch, gpus: int = 2) -> FakeMachine:
    """Return a machine of idle V100 that this process and its children meet from now on."""
    machine = FakeMachine(folder / "nvml.txt")
    machine.add_gpus(gpus)
    machine.write()
    for name, value in machine.environment().items():
        monkeypatch.setenv(name, value)
    return machine


def _named(values: Mapping[str, Any]) -> Iterable[str]:
    return (f"{name} {value}" for name, value in values.items() if value is not None)


def _shown(value: Any) -> str:
    return "-" if value is None else str(value)
