"""How alike families are, judged by their names and by their pace alone.

A family's name often tells its model and its batch size: ``ResNet-50:64``, ``resnet50-b64``,
``bert_batch_size_32``. The digest that tells apart tasks with other requests or parameters belongs to
neither. Where a name tells no batch size, families of one model are ordered by their unit time alone.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from airflow_provider_eaco.core.energy.tiles import FloatArray

_DIGEST = re.compile(r"-[0-9a-f]{8}$")
_BATCH = re.compile(
    r"(?P<model>.+?)(?::|[-_. ](?:batch[-_ ]?size|batch|bs|b)[-_=: ]?)(?P<batch>[1-9][0-9]{0,8})",
    re.IGNORECASE,
)

# Octaves of batch size or pace over which two families of one model lose their likeness (by exp(-1/2)).
_OCTAVES = 2.0


class NameParts(NamedTuple):
    """What a family's name tells; ``batch`` is ``None`` where it tells none."""

    model: str
    batch: int | None


@lru_cache(maxsize=4096)
def name_parts(family: str) -> NameParts:
    """Return model and batch size as the name of the family tells them."""
    name = _DIGEST.sub("", family) or family
    found = _BATCH.fullmatch(name)
    if found is None:
        return NameParts(name.rstrip(":") or name, None)
    return NameParts(found["model"], int(found["batch"]))


class Ruler(IntEnum):
    """By what families of one model are told apart; places on different rulers are not compared."""

    NONE = 0
    BATCH = 1
    PACE = 2


@dataclass(frozen=True, slots=True)
class Trait:
    """A family with its model and its place among the families of that model, in octaves."""

    family: str
    model: str
    ruler: Ruler
    place: float


def trait_of(family: str, unit_s: float | None) -> Trait:
    """Return the family's trait; ``unit_s`` is its unit time alone."""
    model, batch = name_parts(family)
    if batch is not None:
        return Trait(family, model, Ruler.BATCH, math.log2(batch))
    if unit_s is not None:
        # A tenth of an octave is 7 %: what a repeated measurement changes is no other place.
        return Trait(family, model, Ruler.PACE, round(math.log2(unit_s), 1))
    return Trait(family, model, Ruler.NONE, 0.0)


class Likeness(NamedTuple):
    """Likeness between two lists of families, from 0 to 1: same model, near in scale, the very same."""

    model: FloatArray
    scale: FloatArray
    family: FloatArray


def likeness(rows: Sequence[Trait], columns: Sequence[Trait]) -> Likeness:
    """Return how alike each family of the rows is to each of the columns."""
    model = _equal([trait.model for trait in rows], [trait.model for trait in columns])
    ruler = _equal([str(trait.ruler) for trait in rows], [str(trait.ruler) for trait in columns])
    family = _equal([trait.family for trait in rows], [trait.family for trait in columns])
    octaves = np.subtract.outer([trait.place for trait in rows], [trait.place for trait in columns])
    return Likeness(model, model * ruler * np.exp(-0.5 * (octaves / _OCTAVES) ** 2), family)


def _equal(rows: Sequence[str], columns: Sequence[str]) -> FloatArray:
    number = {name: index for index, name in enumerate(dict.fromkeys((*rows, *columns)))}
    left = np.array([number[name] for name in rows], dtype=np.int64)
    right = np.array([number[name] for name in columns], dtype=np.int64)
    return np.equal.outer(left, right).astype(np.float64)
