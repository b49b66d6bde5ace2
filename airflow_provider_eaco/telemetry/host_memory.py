"""How much memory of its host a process may use: what the machine has, or the limit of a control group."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

OWN_GROUPS = Path("/proc/self/cgroup")
GROUPS = Path("/sys/fs/cgroup")


def host_memory_mib(own_groups: Path = OWN_GROUPS, groups: Path = GROUPS) -> int | None:
    """Return the memory in MiB that this process and its tasks may use, ``None`` where it cannot be told.

    That is the smaller of the machine's memory and of the limits of this process's control group and of the
    groups above it. A limit that cannot be read, or that is none, counts for nothing.

    :param own_groups: the file that names this process's control groups, see cgroups(7).
    :param groups: where the control groups are mounted.
    """
    known = [physical_memory_mib(), *(limit // 2**20 for limit in _limits(own_groups, groups))]
    return min((each for each in known if each is not None), default=None)


def physical_memory_mib() -> int | None:
    """Return this machine's memory in MiB, ``None`` where it cannot be told."""
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2**20
    except (ValueError, OSError):
        return None


def _limits(own_groups: Path, groups: Path) -> Iterator[int]:
    """Yield every limit in bytes on this process.

    In a container the file may name the group as the host sees it, which is not mounted there: the root of
    the mount is then the container's own group.
    """
    for line in _text(own_groups).splitlines():
        _, controllers, path = (*line.split(":", 2), "", "")[:3]
        if controllers == "":
            mount, name = groups, "memory.max"
        elif "memory" in controllers.split(","):
            mount, name = groups / "memory", "memory.limit_in_bytes"
        else:
            continue
        group = PurePosixPath(path.lstrip("/"))
        for each in (group, *group.parents):
            limit = _text(mount / each / name).strip()
            if limit.isdecimal() and int(limit) > 0:
                yield int(limit)


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except (OSError, UnicodeError):
        return ""
