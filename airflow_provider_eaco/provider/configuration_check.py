"""What is wrong with ``[eaco]`` that only shows when something is made from it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator

from airflow.configuration import conf

from airflow_provider_eaco.core.model.errors import EacoError
from airflow_provider_eaco.core.policy.registry import make_ordering, make_policy, make_rules
from airflow_provider_eaco.provider.options import DEFAULTS, SECTION
from airflow_provider_eaco.provider.rules import SETTING, read_rules
from airflow_provider_eaco.provider.settings import EacoSettings
from airflow_provider_eaco.provider.wiring import check_simulated

log = logging.getLogger(__name__)


def configuration_problems(settings: EacoSettings) -> list[str]:
    """Return a sentence for each part of the section that nothing can be made from, in no more detail than
    whoever needs the part would tell. Empty: none is known.
    """
    return [*_of_rules(), *_of_pools(settings), *_tried(check_simulated, settings)]


def _of_rules() -> Iterator[str]:
    rules, problems = read_rules(conf.get(SECTION, "rules", fallback=DEFAULTS["rules"]))
    yield from problems
    for rule in rules:
        if rule.problem is not None:
            yield f"{SETTING}, rule {rule.number}: {rule.problem}; its tasks get no GPUs"


def _of_pools(settings: EacoSettings) -> Iterator[str]:
    for pool in settings.pools:
        yield from _tried(make_policy, pool)
        yield from _tried(make_ordering, pool.ordering)
        yield from _tried(make_rules, pool)


def _tried(make: Callable[..., object], *given: object) -> Iterator[str]:
    try:
        make(*given)
    except EacoError as error:
        yield str(error)
    except Exception as error:
        # A policy or ordering of somebody else's package may raise anything.
        log.debug("The configuration was not read to its end", exc_info=True)
        yield f"{make.__name__} of {', '.join(map(repr, given))}: {type(error).__name__}: {error}"
