"""The examples of the guide to training libraries, against the real libraries: train, yield, go on.

Those that need PyTorch are skipped where it is not installed; ``make test-integrations`` installs it.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from airflow.sdk.exceptions import AirflowRescheduleException

from airflow_provider_eaco import training_run
from tests.unit.integrations import libraries
from tests.unit.provider.training_rig import Store, granted, in_task

GUIDE = Path(__file__).resolve().parents[3] / "docs" / "guides" / "training-libraries.md"
SECTION = re.compile(r"^## ([^\n]+)\n(?:(?!^## ).)*?```python\n(.*?)```", re.MULTILINE | re.DOTALL)
EXAMPLES = dict(SECTION.findall(GUIDE.read_text()))
LIBRARIES: list[Any] = [
    libraries.PyTorch,
    libraries.Lightning,
    libraries.Transformers,
    libraries.LightGBM,
    libraries.XGBoost,
    libraries.ScikitLearn,
]

# What the libraries warn of is for their users; here they are used as their users do.
pytestmark = pytest.mark.filterwarnings("ignore")


def run_example(library: Any, folder: Path) -> Any:
    """Run the guide's example in a process's stead: with a new model and new data."""
    training = library(folder)
    exec(compile(EXAMPLES[library.heading], f"{GUIDE.name}, {library.heading}", "exec"), training.names)
    return training


def test_every_example_is_run() -> None:
    """The guide has no example that is not run, and none is longer than a page's corner."""
    assert sorted(EXAMPLES) == sorted(library.heading for library in LIBRARIES)
    assert max(len(example.splitlines()) for example in EXAMPLES.values()) <= 15


@pytest.mark.parametrize("library", LIBRARIES, ids=lambda library: library.heading)
def test_a_training_that_gave_way_ends_like_one_that_was_never_asked(
    library: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Asked in its second unit it stops there and leaves, goes on from the third, and does none twice."""
    expected = run_example(library, tmp_path / "alone").result()
    store, meter = Store(), granted(monkeypatch)
    store.instruct(1)

    def ask() -> None:
        if meter.log.count("wait") == 2:
            store.instruct(1, yield_asked=True)

    meter.during = ask
    with in_task(store), pytest.raises(AirflowRescheduleException):
        run_example(library, tmp_path / "shared")
    assert (store.progress["units_done"], store.progress["checkpoint_units"]) == (2, 2)
    assert Path(store.progress["checkpoint"]).exists()
    store.instruct(2)
    with in_task(store):
        resumed = run_example(library, tmp_path / "shared")
    assert [unit[0] for unit in store.progress["recent"]] == [2, 3]
    assert store.progress["units_done"] == 4
    np.testing.assert_allclose(resumed.result(), expected, rtol=1e-5, atol=1e-6)
    with in_task(store, try_number=2):
        retried = run_example(library, tmp_path / "shared")
    assert store.progress["units_done"] == 4
    np.testing.assert_allclose(retried.result(), expected, rtol=1e-5, atol=1e-6)
    assert meter.log == ["begin", "wait"] * 4


@pytest.mark.parametrize(
    ("library", "passed_on"),
    [
        (libraries.Lightning, ", ckpt_path=run.checkpoint"),
        (libraries.Transformers, "resume_from_checkpoint=run.checkpoint"),
        (libraries.LightGBM, "init_model=begun, "),
        (libraries.XGBoost, "xgb_model=begun, "),
    ],
    ids=lambda value: getattr(value, "heading", ""),
)
def test_a_checkpoint_that_was_not_passed_on_is_refused(
    library: Any, passed_on: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A training that would begin anew beside a run that has two units done is told what to pass."""
    granted(monkeypatch)
    store = Store()
    example = EXAMPLES[library.heading]
    assert example.count(passed_on) == 1
    begin = re.search(r"training_run\(.*?\)", example)
    assert begin is not None
    two_units = f"with {begin[0]} as run:\n    [run.report(checkpoint='/ckpt') for _ in range(2)]\n    1 / 0"
    with in_task(store), pytest.raises(ZeroDivisionError):
        exec(two_units, {"training_run": training_run})
    training = library(tmp_path)
    with in_task(store, try_number=2), pytest.raises(ValueError, match=r"/ckpt was saved: pass [a-z_]+="):
        exec(example.replace(passed_on, ""), training.names)
