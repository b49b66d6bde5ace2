"""How well sets that nobody has measured are predicted, and whether the promised bound holds.

``python -m bench.bench_predictor`` prints every figure of docs/reproduce/predictor.md, as tables in Markdown.
The data set ``gavel_throughputs`` has to be in the folder that ``EACO_DATA`` names. But for the CPU times of
the last table nothing depends on the machine.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from airflow_provider_eaco.core.energy.learned import LearnedPredictor
from airflow_provider_eaco.core.energy.prediction import ConservativePredictor
from airflow_provider_eaco.core.model.profile import FamilySet
from airflow_provider_eaco.simulator.workload import data_folder
from bench.predictor_rig import (
    Fold,
    Pairs,
    Score,
    cross_validated,
    family_folds,
    learning_score,
    model_folds,
    pair_folds,
    read_pairs,
    set_powers,
    taught_by_lessons,
    with_assumed_use,
)

ESTIMATE_ERROR = 0.05
GPU_MODELS = ("V100", "P100", "K80")
LEFT_OUT: Sequence[tuple[str, Callable[[Pairs], list[Fold]]]] = (
    ("pairs, 10 folds", pair_folds),
    ("each (model, batch)", family_folds),
    ("whole models", model_folds),
)
TAUGHT = (5, 10, 20, 40, 80, 160)
SEEDS = range(1, 6)

_FIGURES = ("members", "median", "p90", "held", "width")


def learned() -> LearnedPredictor:
    """Return the predictor as a pool has it by default."""
    return LearnedPredictor(ESTIMATE_ERROR)


def print_accuracy(folder: Path, gpu_models: Sequence[str]) -> None:
    """Print the errors of sets left out in three ways, for what was measured and for what B2 assumes."""
    _head("gpu", "known alone", "left out", *_FIGURES)
    for gpu_model in gpu_models:
        pairs = read_pairs(folder, gpu_model)
        for known, taught in (("name, step time", pairs), ("and B2's use", with_assumed_use(pairs))):
            for name, folds in LEFT_OUT:
                _row(gpu_model, known, name, *_figures(cross_validated(learned(), taught, folds(taught))))
        rule = cross_validated(
            ConservativePredictor(ESTIMATE_ERROR), with_assumed_use(pairs), pair_folds(pairs)
        )
        _row(gpu_model, "and B2's use", "conservative rule", *_figures(rule))


def print_models(pairs: Pairs) -> None:
    """Print the errors with each model left out."""
    _head("model left out", *_FIGURES)
    for fold in model_folds(pairs):
        left_out = set.intersection(*({family.partition(":")[0] for family in pair} for pair in fold))
        _row(*sorted(left_out), *_figures(cross_validated(learned(), pairs, [fold])))


def print_learning(pairs: Pairs) -> None:
    """Print the errors on all other pairs after so many: drawn by lot, and chosen by what they teach."""
    chosen = taught_by_lessons(learned(), pairs, TAUGHT[-1])
    _head("pairs known", "chosen", *_FIGURES)
    for count in TAUGHT:
        _row(count, "by lot, 5 seeds", *_figures(learning_score(learned(), pairs, count, SEEDS)))
        _row(count, "by lessons", *_figures(_after(pairs, chosen[:count])))


def _after(pairs: Pairs, taught: Sequence[FamilySet]) -> Score:
    score = Score()
    score.add(learned(), pairs, pairs.book(taught), pairs.sets.keys() - set(taught))
    return score


def print_power() -> None:
    """Print the power of the six measured sets of V100 nodes, each predicted from the five others."""
    _head("set", "measured W", "formula W", "learned W")
    by_formula: dict[FamilySet, float] = {
        families: power_w for families, _, power_w in set_powers(ConservativePredictor(ESTIMATE_ERROR))
    }
    for families, measured_w, learned_w in set_powers(learned()):
        _row(" ".join(families), *(f"{w:.0f}" for w in (measured_w, by_formula[families], learned_w)))


def print_cost(pairs: Pairs) -> None:
    """Print CPU times with every pair known, the largest experience that the data allow."""
    book, absent = pairs.book(pairs.sets), ("A3C:", "Recommendation:512", "ResNet-50:128")
    triple = FamilySet(tuple(sorted(absent)))
    predictor = learned()
    _head("with all pairs known", "ms of CPU time")
    for what, call in (
        ("first answer, the fit included", lambda: predictor.predict(triple, pairs.gpu_model, 1, book)),
        ("every further answer", lambda: predictor.predict(triple, pairs.gpu_model, 1, book)),
        ("first lesson of three families", lambda: predictor.lesson(triple, pairs.gpu_model, 1, book)),
        ("every further lesson", lambda: predictor.lesson(triple, pairs.gpu_model, 1, book)),
    ):
        begin = time.process_time()
        call()
        _row(what, f"{(time.process_time() - begin) * 1000:.1f}")


def _figures(score: Score) -> tuple[str, ...]:
    return (
        str(len(score.errors)),
        f"{score.median:.4f}",
        f"{score.p90:.4f}",
        f"{100 * score.coverage:.1f} %",
        f"{100 * score.width:.1f} %",
    )


def _head(*names: str) -> None:
    print()  # noqa: T201  # the product of a benchmark
    _row(*names)
    _row(*("---" for _ in names))


def _row(*cells: object) -> None:
    print("| " + " | ".join(str(cell) for cell in cells) + " |")  # noqa: T201  # the product of a benchmark


def main(argv: Sequence[str] | None = None) -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.bench_predictor",
        description=__doc__,
        formatter_class=argparse.RawTextHelpFormatter,
    )
    parser.add_argument("--data", type=Path, default=data_folder(), help="folder of the published data sets")
    folder = parser.parse_args(argv).data / "gavel_throughputs"
    v100 = read_pairs(folder, "V100")
    print_accuracy(folder, GPU_MODELS)
    print_models(v100)
    print_learning(v100)
    print_power()
    print_cost(v100)


if __name__ == "__main__":
    main()
