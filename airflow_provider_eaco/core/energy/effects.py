"""The prior of the learner: how the slowdowns of members of sets vary together before anything was measured.

The logarithm of a member's slowdown is what the published rule says, plus one effect of each partner on it.
An effect is drawn from what all pairs have in common, what the member suffers from anybody, what the partner
does to anybody, and what the two do to each other; each is shared by the families of one model, the more the
nearer they are in batch size. Effects of several partners add up, so that pairs teach about larger sets.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from airflow_provider_eaco.core.energy.similarity import Likeness, Trait, likeness
from airflow_provider_eaco.core.energy.tiles import FloatArray, product
from airflow_provider_eaco.core.model.profile import FamilySet

# Variances of one partner's effect on the logarithm of a slowdown. Round numbers near the likeliest ones for
# Gavel's pairs on V100 (OSDI 2020); they serve those on P100 and K80 as well (docs/reproduce/predictor.md).
_ALL_PAIRS = 0.05
_MEMBER_MODEL, _MEMBER_SCALE, _MEMBER_FAMILY = 0.02, 0.03, 0.002
_PARTNER_MODEL, _PARTNER_SCALE, _PARTNER_FAMILY = 0.04, 0.1, 0.002
_BOTH_MODELS, _BOTH_SCALES = 0.005, 0.01

# What repeated measurements differ by, 3 %, and what no effect above explains.
NOISE = 0.001


class Row(NamedTuple):
    """One member of a set beside its partners."""

    member: str
    partners: FamilySet


def rows_of(families: FamilySet) -> list[Row]:
    """Return each distinct family of the set beside the others."""
    rows = []
    for family in dict.fromkeys(families):
        at = families.index(family)
        rows.append(Row(family, FamilySet((*families[:at], *families[at + 1 :]))))
    return rows


@dataclass(frozen=True, slots=True)
class Design:
    """Rows as numbers: which of ``traits`` the member has, and how many partners have each."""

    traits: Sequence[Trait]
    member: NDArray[np.int64]
    partners: FloatArray

    @classmethod
    def of(cls, rows: Sequence[Row], traits: Mapping[str, Trait]) -> Design:
        families = list(dict.fromkeys(family for row in rows for family in (row.member, *row.partners)))
        column = {family: index for index, family in enumerate(families)}
        partners = np.zeros((len(rows), len(families)))
        for index, row in enumerate(rows):
            for family in row.partners:
                partners[index, column[family]] += 1
        member = np.array([column[row.member] for row in rows], dtype=np.int64)
        return cls([traits[family] for family in families], member, partners)


def covariance(left: Design, right: Design) -> FloatArray:
    """Return the prior covariance of the logarithms of slowdowns, rows of ``left`` by rows of ``right``."""
    alike = likeness(left.traits, right.traits)
    members = np.ix_(left.member, right.member)
    partners = left.partners.sum(axis=1)[:, None] * right.partners.sum(axis=1)[None, :]
    suffers = _MEMBER_MODEL * alike.model + _MEMBER_SCALE * alike.scale + _MEMBER_FAMILY * alike.family
    found: FloatArray = partners * (_ALL_PAIRS + suffers[members])
    found += _between(left, _done_to_anybody(alike), right)
    found += _BOTH_MODELS * alike.model[members] * _between(left, alike.model, right)
    found += _BOTH_SCALES * alike.scale[members] * _between(left, alike.scale, right)
    return found


def prior_variances(design: Design) -> FloatArray:
    """Return the diagonal of the covariance of the rows with themselves."""
    alike = likeness(design.traits, design.traits)
    suffers = _MEMBER_MODEL + _MEMBER_SCALE + _MEMBER_FAMILY
    partners = _done_to_anybody(alike) + _BOTH_MODELS * alike.model + _BOTH_SCALES * alike.scale
    found: FloatArray = design.partners.sum(axis=1) ** 2 * (_ALL_PAIRS + suffers)
    found += np.sum(product(design.partners, partners) * design.partners, axis=1)
    return found


def _between(left: Design, partners: FloatArray, right: Design) -> FloatArray:
    """Return the sum over all pairs of partners, one of each row."""
    return product(product(left.partners, partners), right.partners.T)


def _done_to_anybody(alike: Likeness) -> FloatArray:
    found: FloatArray = (
        _PARTNER_MODEL * alike.model + _PARTNER_SCALE * alike.scale + _PARTNER_FAMILY * alike.family
    )
    return found
