"""Sets on several GPU models, and limits of which nothing can be told."""

from __future__ import annotations

import pytest

from tests.builders import (
    hold_gpus,
    make_book,
    make_job,
    make_node,
    make_pair,
    make_progress,
    make_resident,
    make_snapshot,
    make_solo,
)
from tests.unit.core.conftest import Cycle
from tests.unit.core.plans import codes_of, launched, texts_of

BOOK = make_book(
    *(make_solo("A", model, utilisation_pct=busy) for model, busy in (("T4", 50.0), ("H100", 20.0))),
    *(make_solo("B", model) for model in ("T4", "H100")),
    *(make_pair({"A": 1.0, "B": 1.3 if model == "H100" else 1.05}, model) for model in ("T4", "H100")),
)
NODES = [
    hold_gpus(
        make_node(f"node-{model}", gpus=1, model=model),
        make_resident(make_job(f"r-{model}", "A", 1, max_stretch=None)),
    )
    for model in ("T4", "H100")
]


@pytest.mark.parametrize(
    ("models", "max_stretch", "node"),
    [
        ((), None, "node-T4"),
        (("H100", "T4"), None, "node-H100"),
        (("H100", "T4"), 1.1, "node-T4"),
        (("T4",), None, "node-T4"),
        (("H100",), 1.1, None),
    ],
)
def test_a_preferred_model_comes_before_a_busier_set(
    cycle: Cycle, models: tuple[str, ...], max_stretch: float | None, node: str | None
) -> None:
    """The first acceptable model whose set keeps the limits is taken, the busiest set within a model."""
    job = make_job("b", "B", 1, gpu_models=models, max_stretch=max_stretch)
    plan = cycle(make_snapshot(*NODES, waiting=[job], profiles=BOOK))
    if node is None:
        assert codes_of(plan, "b") == ["interference_too_high", "waiting_for_gpu"]
        assert "1.300 times and ask for 40 % of the GPUs' time; allowed: 1.100 times" in texts_of(plan, "b")
    else:
        assert launched(plan)["b"].placement.node == node


def test_a_deadline_with_an_unknown_end_is_not_risked_by_sharing(cycle: Cycle) -> None:
    """A newcomer with a deadline whose remaining work is unknown joins nobody; with a known one it does."""
    for progress, joins in ((make_progress(), False), (make_progress(total=50), True)):
        job = make_job("b", "B", 1, deadline_s=90_000.0, progress=progress)
        plan = cycle(make_snapshot(*NODES, waiting=[job], profiles=BOOK))
        assert ("b" in launched(plan)) is joins
    job = make_job("b", "B", 1, deadline_s=90_000.0)
    plan = cycle(make_snapshot(*NODES, waiting=[job], profiles=BOOK))
    assert "allowed: unknown" in texts_of(plan, "b")


def test_a_node_of_mixed_models_gives_gpus_of_one_model_only(cycle: Cycle) -> None:
    """Two free GPUs of different models are not a pair; a job of one GPU takes the preferred one."""
    one, other = make_node("node-a", gpus=1, model="T4"), make_node("node-b", gpus=1, model="H100")
    gpus = (*one.free, *other.free)
    mixed = type(one)(type(one.node)("node-a", gpus), free=gpus)
    plan = cycle(make_snapshot(mixed, waiting=[make_job("two", "new", 2)]))
    assert codes_of(plan, "two") == ["no_such_gpu"]
    plan = cycle(make_snapshot(mixed, waiting=[make_job("one", "new", 1, gpu_models=("H100", "T4"))]))
    assert launched(plan)["one"].placement.gpu_uuids == (other.free[0].uuid,)
