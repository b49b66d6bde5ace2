"""Whether new work may start on a GPU, from what its driver says of it. Pure.

A GPU that is lost, or on which an Xid says that the hardware failed, takes no new work; who runs there is
left alone. It comes back by itself: a lost one once it answers again for a while (it was reset then, and
whatever Xid came before is forgotten), the other one after a quarantine without a further Xid.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from airflow_provider_eaco.core.model.gpu import GpuHealth
from airflow_provider_eaco.telemetry.nvml_sample import DeviceState

# For how long after the last Xid of the hardware a GPU takes nothing new.
QUARANTINE_S = 600.0
# For how long a GPU that was lost has to answer before it takes work again.
CLEAN_S = 10.0

# Xids of NVIDIA's catalogue that speak of the program, not of the board: graphics engine exception (13), page
# fault (31), channel stopped (43), preemptive removal (45), video decoder exception (68), contained memory
# error (94), context switch time-out (109); and two that only record: row remapping (63), single-bit errors
# (92). Every other one, those not known here included, is taken for the hardware's.
PROGRAM_XIDS = frozenset({13, 31, 43, 45, 63, 68, 92, 94, 109})


@dataclass(frozen=True, slots=True)
class Verdict:
    """Health with its cause; a healthy GPU has none."""

    health: GpuHealth
    why: str | None = None


@dataclass(slots=True)
class _Past:
    quarantine_until_s: float | None = None
    xid: int | None = None
    lost: bool = False
    clean_since_s: float | None = None


class HealthBook:
    """Remembers of each GPU what it has been through."""

    def __init__(self) -> None:
        self._past: dict[str, _Past] = {}

    def judge(self, uuid: str, now_s: float, state: DeviceState, xids: Sequence[int] = ()) -> Verdict:
        """Return whether new work may start on the GPU at ``now_s``.

        :param now_s: of a clock that never goes back.
        :param xids: the critical errors since the last time.
        """
        past = self._past.setdefault(uuid, _Past())
        for xid in xids:
            if xid not in PROGRAM_XIDS:
                past.quarantine_until_s, past.xid = now_s + QUARANTINE_S, xid
        if state is DeviceState.LOST:
            past.lost, past.clean_since_s = True, None
            return Verdict(GpuHealth.UNHEALTHY, "it is lost, or has to be reset")
        if state is DeviceState.SILENT:
            past.clean_since_s = None
            return Verdict(GpuHealth.UNKNOWN, "nothing can be read from it")
        if past.lost:
            if past.clean_since_s is None:
                past.clean_since_s = now_s
            if now_s - past.clean_since_s < CLEAN_S:
                return Verdict(GpuHealth.UNHEALTHY, "it was lost and answers again only now")
            self._past[uuid] = _Past()
            return Verdict(GpuHealth.HEALTHY)
        if past.quarantine_until_s is not None and now_s < past.quarantine_until_s:
            return Verdict(GpuHealth.UNHEALTHY, f"Xid {past.xid}")
        return Verdict(GpuHealth.HEALTHY)
