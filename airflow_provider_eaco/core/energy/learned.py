"""A predictor that learns from every measured set, per GPU model and number of GPUs."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

from airflow_provider_eaco.core.energy.experience import Alone, Experience, ExperienceReader, Hardware
from airflow_provider_eaco.core.energy.power_fit import PowerFit, formula_power_w
from airflow_provider_eaco.core.energy.prediction import ConservativePredictor, Lesson, Predictor
from airflow_provider_eaco.core.energy.regression import least_errors
from airflow_provider_eaco.core.energy.slowdown_fit import SlowdownFit
from airflow_provider_eaco.core.model.decision import SetPrediction
from airflow_provider_eaco.core.model.pool import PredictorName
from airflow_provider_eaco.core.model.profile import FamilySet, PowerScope, ProfileBook

# Figures are given to this many decimals, far beyond what is known: linear algebra may differ in the last
# digits from one machine to the next, and a decision must not.
_DECIMALS = 6


@dataclass(frozen=True, slots=True)
class _Fits:
    """What was fitted to one experience."""

    experience: Experience
    slowdown: SlowdownFit
    power: PowerFit


class LearnedPredictor:
    """Predicts unmeasured sets from the measured ones that resemble them.

    ``predict(families, gpu_model, gpu_count, book)`` returns a :class:`SetPrediction`, or ``None`` where a
    member has no fresh solo profile with a unit time. Each careful slowdown is promised to hold in
    ``quantile`` of all cases, and is wider the less is known of the members; ``error`` is the largest of
    careful / expected - 1. With fewer measured slowdowns on these GPUs than such a promise takes (nine for a
    quantile of 0.9) the answer is that of the conservative rule; for a set larger than any measured one the
    careful slowdown is the larger of both.

    ``lesson(families, gpu_model, gpu_count, book)`` tells by how much measuring the set would narrow what is
    predicted of pairs that nobody has measured; it needs no measured set.

    A fit is a function of what the book teaches; it is kept while that stays. Use one object from one thread.

    :param estimate_error: relative error of the conservative rule.
    :param quantile: how often a member's slowdown is promised to be at most the careful one; above 0.5.
    """

    learns_across = True

    def __init__(self, estimate_error: float, quantile: float = 0.9) -> None:
        if not 0.5 < quantile < 1:
            raise ValueError(f"quantile is {quantile!r}; it must be above 0.5 and below 1")
        self._conservative = ConservativePredictor(estimate_error)
        self._quantile = quantile
        self._reader = ExperienceReader()
        self._read: list[tuple[ProfileBook, dict[Hardware, Experience]]] = []
        self._fits: dict[Hardware, _Fits] = {}

    def predict(
        self, families: FamilySet, gpu_model: str, gpu_count: int, book: ProfileBook
    ) -> SetPrediction | None:
        """Return what is expected of these families on the same GPUs, ``None`` where nothing can be said."""
        plain = self._conservative.predict(families, gpu_model, gpu_count, book)
        hardware = Hardware(gpu_model, gpu_count)
        if len(families) < 2 or any(not _has_pace(book, family, hardware) for family in families):
            return plain
        measured = plain is not None and plain.measured
        profile = book.coallocation_of(families, *hardware) if measured else None
        if profile is not None and profile.power_w is not None:
            return plain
        alone = {family: self._reader.alone(book, family, hardware) for family in families}
        fits = self._fits_of(book, hardware)
        if plain is not None and plain.measured:
            return _with_power(plain, families, alone, fits)
        if fits.experience.rows < least_errors(self._quantile):
            return plain
        return _learned(plain, families, alone, fits)

    def lesson(
        self,
        families: FamilySet,
        gpu_model: str,
        gpu_count: int,
        book: ProfileBook,
        among: Collection[str] | None = None,
    ) -> Lesson | None:
        """Return what measuring the set would teach, ``None`` when a member has no fresh solo profile."""
        hardware = Hardware(gpu_model, gpu_count)
        if any(not _has_pace(book, family, hardware) for family in families):
            return None
        asked = _seen_alone(book, hardware) if among is None else among
        others = frozenset(family for family in asked if _has_pace(book, family, hardware))
        alone = {family: self._reader.alone(book, family, hardware) for family in others.union(families)}
        return self._fits_of(book, hardware).slowdown.lesson(families, others, alone)

    def families_changed(self, before: ProfileBook, after: ProfileBook) -> frozenset[str]:
        """Return the families of which another thing may be predicted under the second book.

        One more measured set changes what is predicted of all families on the same GPUs.
        """
        changed = after.families_changed_since(before)
        taught = {
            hardware
            for hardware in {Hardware(*key[1:]) for key in (*before.coallocation, *after.coallocation)}
            if self._experience(before, hardware) != self._experience(after, hardware)
        }
        if not taught:
            return changed
        told = (key.families[0] for key in (*before.solo, *after.solo) if Hardware(*key[1:]) in taught)
        return changed.union(told)

    def _fits_of(self, book: ProfileBook, hardware: Hardware) -> _Fits:
        experience = self._experience(book, hardware)
        fits = self._fits.get(hardware)
        if fits is None or fits.experience != experience:
            slowdown = SlowdownFit(experience, self._quantile)
            fits = _Fits(experience, slowdown, PowerFit(experience, self._quantile))
            self._fits[hardware] = fits
        return fits

    def _experience(self, book: ProfileBook, hardware: Hardware) -> Experience:
        """Return what the book teaches; of the two last books it is kept."""
        read = next((read for known, read in self._read if known is book), None)
        if read is None:
            read = {}
            self._read = [(book, read), *self._read[:1]]
        if hardware not in read:
            read[hardware] = self._reader.experience(book, hardware)
        return read[hardware]


def _seen_alone(book: ProfileBook, hardware: Hardware) -> list[str]:
    return [key.families[0] for key in book.solo if (key.gpu_model, key.gpu_count) == hardware]


def _has_pace(book: ProfileBook, family: str, hardware: Hardware) -> bool:
    solo = book.fresh_solo_of(family, *hardware)
    return solo is not None and solo.unit_s is not None


def _learned(
    plain: SetPrediction | None, families: FamilySet, alone: Mapping[str, Alone], fits: _Fits
) -> SetPrediction | None:
    estimates = fits.slowdown.estimates(families, alone)
    expected = {family: _slowdown(each.mean) for family, each in estimates.items()}
    careful = {family: _slowdown(each.bound) for family, each in estimates.items()}
    if len(families) > fits.slowdown.largest_set:
        if plain is None:
            return None
        careful = {family: max(bound, plain.slowdowns[family]) for family, bound in careful.items()}
    prediction = SetPrediction(
        careful,
        None if plain is None else plain.power_w,
        None if plain is None else plain.utilisation_pct,
        measured=False,
        error=round(max(careful[family] / expected[family] for family in careful) - 1, _DECIMALS),
        expected=expected,
    )
    return _with_power(prediction, families, alone, fits)


def _slowdown(logarithm: float) -> float:
    """Return the slowdown; nobody is predicted to run faster beside others than alone."""
    return round(math.exp(max(0.0, logarithm)), _DECIMALS)


def _with_power(
    known: SetPrediction, families: FamilySet, alone: Mapping[str, Alone], fits: _Fits
) -> SetPrediction:
    """Return the prediction with the set's likeliest power, and the careful one as far as it is learnt."""
    members = [alone[family] for family in families]
    rates = [1 / known.expected_slowdowns[family] for family in families]
    scope = members[0].scope
    formula_w = None if scope is None else formula_power_w(members, rates, fits.experience.hardware, scope)
    if formula_w is None:
        return known
    mean, bound = fits.power.log_correction(families, alone)
    expected_w = formula_w * math.exp(mean)
    careful_w = known.power_w if bound is None else formula_w * math.exp(bound)
    if known.power_w is not None and scope is PowerScope.BOARD:
        # No set of boards draws more than all members' dynamic power on top of the idle draw.
        expected_w, careful_w = min(expected_w, known.power_w), min(careful_w or math.inf, known.power_w)
    careful_w = expected_w if careful_w is None else max(careful_w, expected_w)
    return replace(known, power_w=round(careful_w, _DECIMALS), expected_power_w=round(expected_w, _DECIMALS))


def make_predictor(name: PredictorName, estimate_error: float) -> Predictor:
    """Return the predictor of that name; ``estimate_error`` is the one of the conservative rule."""
    if name is PredictorName.LEARNED:
        return LearnedPredictor(estimate_error)
    return ConservativePredictor(estimate_error)
