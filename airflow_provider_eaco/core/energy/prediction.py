"""Predictors: what is expected of families on the same GPUs, under one book of profiles.

A predictor holds no state of its own: what it answers is a function of its arguments, and what it keeps it
could compute again. ``interference`` has the conservative rule, ``learned`` the one that learns.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Protocol

from airflow_provider_eaco.core.energy.interference import predict
from airflow_provider_eaco.core.model.decision import SetPrediction
from airflow_provider_eaco.core.model.profile import FamilySet, ProfileBook


@dataclass(frozen=True, slots=True)
class Lesson:
    """What measuring one set would teach about pairs that were never measured.

    ``before`` and ``after``: the standard deviation of what is believed of the logarithm of a slowdown, its
    mean over the ``members`` of those pairs, now and once the set has been measured. Careful slowdowns lie
    above expected ones by a multiple of it, so their margins shrink about as it does.
    """

    members: int
    before: float
    after: float

    @property
    def taught(self) -> float:
        """The fall of the standard deviation, summed over all members."""
        return self.members * (self.before - self.after)


class Predictor(Protocol):
    """Tells what families do to each other, and how sure that is.

    ``learns_across``: what is measured of a set may change what is predicted of others.
    """

    learns_across: bool

    def predict(
        self, families: FamilySet, gpu_model: str, gpu_count: int, book: ProfileBook
    ) -> SetPrediction | None:
        """Return what is expected of these families on the same GPUs, ``None`` where nothing can be said.

        A fresh measured set answers with its own numbers. ``slowdowns`` and ``power_w`` are careful,
        ``expected_slowdowns`` and ``joint_power_w`` the likeliest.
        """

    def lesson(
        self,
        families: FamilySet,
        gpu_model: str,
        gpu_count: int,
        book: ProfileBook,
        among: Collection[str] | None = None,
    ) -> Lesson | None:
        """Return what measuring the set would teach, ``None`` where that cannot be told.

        :param among: the families whose pairs matter, for example those that wait or run; by default all that
            were seen alone on such GPUs.
        """

    def families_changed(self, before: ProfileBook, after: ProfileBook) -> frozenset[str]:
        """Return the families of which another thing may be predicted under the second book."""


class ConservativePredictor:
    """Estimates unmeasured sets from their members alone, by published rules and a fixed error.

    :param estimate_error: relative error that is added to the slowdowns of a set that was never measured.
    """

    learns_across = False

    def __init__(self, estimate_error: float) -> None:
        self._estimate_error = estimate_error

    def predict(
        self, families: FamilySet, gpu_model: str, gpu_count: int, book: ProfileBook
    ) -> SetPrediction | None:
        return predict(families, gpu_model, gpu_count, book, self._estimate_error)

    def lesson(
        self,
        families: FamilySet,
        gpu_model: str,
        gpu_count: int,
        book: ProfileBook,
        among: Collection[str] | None = None,
    ) -> Lesson | None:
        """Return ``None``: no set teaches it about another."""
        return None

    def families_changed(self, before: ProfileBook, after: ProfileBook) -> frozenset[str]:
        return after.families_changed_since(before)
