"""What the learner says of sets that nobody has measured, on a small world whose truth is known."""

from __future__ import annotations

import math
import random
from collections.abc import Iterable
from dataclasses import replace
from itertools import combinations, combinations_with_replacement

import pytest

from airflow_provider_eaco.core.energy.experience import ExperienceReader, Hardware
from airflow_provider_eaco.core.energy.interference import predict
from airflow_provider_eaco.core.energy.learned import LearnedPredictor
from airflow_provider_eaco.core.energy.prediction import ConservativePredictor
from airflow_provider_eaco.core.model.decision import SetPrediction
from airflow_provider_eaco.core.model.pool import PoolSettings, PredictorName
from airflow_provider_eaco.core.model.profile import (
    CoallocationProfile,
    FamilySet,
    PowerScope,
    ProfileBook,
    ProfileSource,
    SoloProfile,
    family_set,
)
from airflow_provider_eaco.core.policy.facts import CycleFacts
from airflow_provider_eaco.data import built_in_book
from tests.builders import make_book, make_pair, make_snapshot, make_solo

MODELS = {"alpha": 0.0, "beta": 0.1, "gamma": 0.25}
BATCHES = (8, 16, 32, 64)
FAMILIES = [f"{model}:{batch}" for model in MODELS for batch in BATCHES]
ALONE = [make_solo(family) for family in FAMILIES]
PAIRS = [family_set(pair) for pair in combinations_with_replacement(FAMILIES, 2)]
ASKED = family_set(("alpha:16", "beta:32"))


def true_slowdown(member: str, partner: str) -> float:
    """What the world does: bigger batches suffer less and press more, some models more than others."""
    (own, batch), (other, others) = member.split(":"), partner.split(":")
    octaves, pressure = math.log2(int(batch) / 8), math.log2(int(others) / 8)
    return math.exp(0.2 + MODELS[own] + 0.5 * MODELS[other] - 0.03 * octaves + 0.08 * pressure)


def measured(pair: FamilySet, **changes: object) -> CoallocationProfile:
    """The profile of the pair as it was measured, without its power."""
    first, second = pair
    slowdowns = {first: true_slowdown(first, second), second: true_slowdown(second, first)}
    return make_pair(slowdowns, **{"power_w": None, **changes}) if first != second else CoallocationProfile(
        pair, "T4", 1, slowdowns, samples=3
    )  # fmt: skip


def believed(pairs: Iterable[FamilySet], *others: SoloProfile | CoallocationProfile) -> ProfileBook:
    """A book of all families alone, these pairs as they are, and whatever else."""
    return make_book(*ALONE, *(measured(pair) for pair in pairs), *others)


def told(book: ProfileBook, families: FamilySet = ASKED, model: str = "T4") -> SetPrediction:
    """What a new learner says."""
    found = LearnedPredictor(0.05).predict(families, model, 1, book)
    assert found is not None
    return found


def margin(found: SetPrediction) -> float:
    """The widest distance of a careful slowdown from the expected one, in logarithms."""
    return max(math.log(found.slowdowns[name] / slow) for name, slow in found.expected_slowdowns.items())


NEW = family_set(("alpha:16", "gamma:32"))
SOME = [pair for pair in random.Random(1).sample(PAIRS, 32) if pair not in {ASKED, NEW}]


def test_without_measured_sets_the_conservative_rule_answers() -> None:
    """An empty experience adds nothing to the published rule and its fixed error."""
    book = believed([])
    assert told(book) == predict(ASKED, "T4", 1, book, 0.05)


def test_nine_measured_slowdowns_are_the_fewest_that_teach() -> None:
    """A promise of nine in ten takes nine errors; with fewer the conservative rule answers."""
    unlike = [pair for pair in PAIRS if pair[0] != pair[1] and pair != ASKED]
    assert told(believed(unlike[:4])) == predict(ASKED, "T4", 1, believed([]), 0.05)
    assert told(believed(unlike[:5])).expected is not None


def test_a_measured_set_answers_with_its_own_numbers() -> None:
    """What was measured is not corrected by what resembles it."""
    found = told(believed([*SOME, ASKED]))
    assert found.measured
    assert dict(found.slowdowns) == dict(measured(ASKED).slowdowns)
    assert found.error == 0.0


def test_an_unmeasured_pair_is_predicted_from_those_that_resemble_it() -> None:
    """Expected slowdowns come near the truth, and the careful ones lie above them."""
    found = told(believed(SOME))
    for member, partner in (ASKED, ASKED[::-1]):
        assert found.expected_slowdowns[member] == pytest.approx(true_slowdown(member, partner), rel=0.03)
        assert found.slowdowns[member] > found.expected_slowdowns[member]
    assert not found.measured
    assert found.error == pytest.approx(math.exp(margin(found)) - 1, abs=1e-5)


def test_the_promise_is_kept_on_what_was_left_out() -> None:
    """About nine in ten slowdowns of pairs that were not drawn are at most the careful ones."""
    learner, book = LearnedPredictor(0.05), believed(SOME)
    held = []
    for pair in PAIRS:
        found = learner.predict(pair, "T4", 1, book)
        assert found is not None
        held += [] if found.measured else [slow <= found.slowdowns[a] for a, slow in _truth(pair)]
    assert sum(held) / len(held) > 0.8


def _truth(pair: FamilySet) -> list[tuple[str, float]]:
    return list(measured(pair).slowdowns.items())


def test_more_measured_sets_bring_the_answer_nearer_and_narrow_it() -> None:
    """With every second pair known errors and margins are smaller than with every tenth."""

    def missed(pairs: list[FamilySet]) -> tuple[float, float]:
        learner, book = LearnedPredictor(0.05), believed(pairs)
        errors, margins = [], []
        for pair in PAIRS[1::2]:
            found = learner.predict(pair, "T4", 1, book)
            assert found is not None
            errors += [abs(math.log(found.expected_slowdowns[a] / slow)) for a, slow in _truth(pair)]
            margins.append(margin(found))
        return math.fsum(errors) / len(errors), math.fsum(margins) / len(margins)

    few, many = missed(PAIRS[::10]), missed(PAIRS[::2])
    assert many[0] < few[0]
    assert many[1] < few[1]


def test_the_less_is_known_of_a_member_the_wider_the_answer() -> None:
    """A new batch size widens the margin, a new model widens it more."""
    newcomers = make_solo("alpha:24"), make_solo("delta:16")
    book = believed(SOME, *newcomers)
    known, new_batch, new_model = (
        margin(told(book, family_set((family, "beta:32")))) for family in ("alpha:16", "alpha:24", "delta:16")
    )
    assert known < new_batch < new_model


def test_names_without_a_batch_size_are_told_apart_by_pace() -> None:
    """Families of one task are alike as their unit times are; nobody needs to write batch sizes."""
    digest = {batch: f"dag.train-0000000{index}" for index, batch in enumerate(BATCHES)}
    solo = [make_solo(name, unit_s=100.0 * 8 / batch) for batch, name in digest.items()]
    names = {f"alpha:{batch}": name for batch, name in digest.items()}

    def renamed(pair: CoallocationProfile) -> CoallocationProfile:
        slowdowns = {names.get(family, family): slow for family, slow in pair.slowdowns.items()}
        families = family_set([names.get(family, family) for family in pair.families])
        return replace(pair, families=families, slowdowns=slowdowns)

    taught = [renamed(measured(pair)) for pair in PAIRS if "alpha:32" not in pair]
    found = told(make_book(*ALONE, *solo, *taught), family_set((digest[32], "beta:32")))
    assert found.expected_slowdowns["beta:32"] == pytest.approx(
        true_slowdown("beta:32", "alpha:32"), rel=0.03
    )


def test_c60_gpu_models_and_numbers_do_not_teach_each_other() -> None:
    """What was measured on other GPUs, or on another number of them, changes nothing here."""
    elsewhere = [
        replace(measured(pair), gpu_model=model, gpu_count=count)
        for pair in SOME
        for model, count in (("A100-80", 1), ("T4", 2))
    ]
    assert told(believed([], *elsewhere)) == told(believed([]))
    assert told(believed(SOME, *elsewhere)) == told(believed(SOME))


NO_LESSON = {
    "stale": {"stale": True},
    "declared": {"source": ProfileSource.DECLARED},
    "out-of-memory": {"slowdowns": dict.fromkeys(("gamma:8", "gamma:16"), 1e9)},
    "faster-than-light": {"slowdowns": dict.fromkeys(("gamma:8", "gamma:16"), 1e-3)},
}


@pytest.mark.parametrize("changes", NO_LESSON.values(), ids=NO_LESSON)
def test_what_was_not_measured_together_teaches_nothing(changes: dict[str, object]) -> None:
    """Stale and declared profiles, and marks that a set does not fit, leave every answer as it was."""
    pair = family_set(("gamma:8", "gamma:16"))
    taught = [each for each in SOME if each != pair]
    doubtful = replace(measured(pair), **changes)
    assert told(believed(taught, doubtful)) == told(believed(taught))


def test_of_very_many_sets_those_with_the_most_samples_teach() -> None:
    """The cost of a fit is bounded: beyond 400 sets the least sampled ones are passed over."""
    names = [f"n{number:02d}" for number in range(30)]
    sets = [
        make_pair({one: 1.1, two: 1.2}, samples=1 + number)
        for number, (one, two) in enumerate(combinations(names, 2))
    ]
    taught = ExperienceReader().experience(make_book(*sets), Hardware("T4", 1)).sets
    assert {each.families for each in taught} == {each.families for each in sets[-400:]}


def test_the_answer_depends_on_the_book_alone() -> None:
    """Neither the order in which profiles were stored nor what was asked before changes a digit."""
    book, other = believed(SOME), believed(PAIRS[::5])
    backwards = ProfileBook(dict(reversed(book.solo.items())), dict(reversed(book.coallocation.items())))
    used = LearnedPredictor(0.05)
    for earlier in (other, backwards, other):
        used.predict(ASKED, "T4", 1, earlier)
        used.lesson(ASKED, "T4", 1, earlier)
    assert used.predict(ASKED, "T4", 1, book) == told(book) == told(backwards)
    assert LearnedPredictor(0.05).lesson(ASKED, "T4", 1, backwards) == used.lesson(ASKED, "T4", 1, book)


def test_nothing_is_told_without_a_unit_time_alone() -> None:
    """A member that was never seen alone has no slowdown."""
    book = believed(SOME, make_solo("new:8", unit_s=None))
    assert LearnedPredictor(0.05).predict(family_set(("new:8", "beta:32")), "T4", 1, book) is None
    assert LearnedPredictor(0.05).lesson(family_set(("new:8", "beta:32")), "T4", 1, book) is None


def test_an_unknown_utilisation_stays_unknown() -> None:
    """Slowdowns are learnt from others even where no utilisation is known; that is not guessed."""
    alone = [replace(solo, utilisation_pct=None) for solo in ALONE]
    book = make_book(*alone, *(measured(pair) for pair in SOME))
    found = told(book)
    assert found.utilisation_pct is None
    for member, partner in (ASKED, ASKED[::-1]):
        assert found.expected_slowdowns[member] == pytest.approx(true_slowdown(member, partner), rel=0.03)


def test_a_set_larger_than_any_measured_one_is_taken_no_lighter_than_by_the_rule() -> None:
    """Effects of partners add up; beyond the measured sizes the careful figure is the larger of both."""
    book, triple = believed(PAIRS), family_set(("alpha:16", "beta:32", "gamma:8"))
    found, rule = told(book, triple), predict(triple, "T4", 1, book, 0.05)
    assert rule is not None
    assert all(found.slowdowns[family] >= rule.slowdowns[family] for family in triple)
    both = [math.log(true_slowdown("alpha:16", partner)) for partner in ("beta:32", "gamma:8")]
    assert math.log(found.expected_slowdowns["alpha:16"]) == pytest.approx(math.fsum(both), rel=0.1)


def test_five_jobs_on_v100_nodes_are_not_guessed() -> None:
    """Where the rule knows no such size and none was measured, nothing is told."""
    five = family_set(["J1"] * 5)
    assert LearnedPredictor(0.05).predict(five, "V100", 8, built_in_book()) is None


@pytest.mark.parametrize("quantile", [0.5, 1.0, math.nan])
def test_a_promise_that_is_none_is_refused(quantile: float) -> None:
    """A quantile that promises nothing, or certainty, is an error that says what is allowed."""
    with pytest.raises(ValueError, match="must be above"):
        LearnedPredictor(0.05, quantile)


# --- power -------------------------------------------------------------------------------------------------


def metered(pair: FamilySet, factor: float) -> CoallocationProfile:
    """The pair with its measured power: dynamic power at the members' rates, times a factor."""
    seen = measured(pair)
    dynamic_w = math.fsum(30.0 / seen.slowdowns[family] for family in pair)
    return replace(seen, power_w=factor * (10.0 + dynamic_w))


def test_the_power_of_an_unmeasured_set_is_learnt() -> None:
    """Where metered sets draw a tenth more than the formula, so will the next one; the bound lies above."""
    found = told(make_book(*ALONE, *(metered(pair, 1.1) for pair in SOME)))
    expected_w = metered(ASKED, 1.1).power_w
    assert found.joint_power_w == pytest.approx(expected_w, rel=0.02)
    assert found.power_w is not None
    assert found.joint_power_w is not None
    assert found.joint_power_w < found.power_w < 1.1 * found.joint_power_w


def test_without_metered_sets_power_follows_the_rates() -> None:
    """Dynamic power is spent at the rate of each member; the careful figure stays the rule's."""
    found = told(believed(SOME))
    assert found.joint_power_w == pytest.approx(metered(ASKED, 1.0).power_w, rel=0.02)
    assert found.power_w == pytest.approx(70.0)


def test_a_trial_that_measured_times_alone_has_its_power_from_its_rates() -> None:
    """A measured set without a metered power keeps its slowdowns and is given the likeliest draw."""
    found = told(believed([*SOME, ASKED]))
    assert found.measured
    assert found.joint_power_w == pytest.approx(metered(ASKED, 1.0).power_w, rel=1e-3)


def test_a_metered_set_keeps_its_power() -> None:
    """What a meter has shown is not corrected."""
    found = told(make_book(*ALONE, *(metered(pair, 1.3) for pair in [*SOME, ASKED])))
    assert found.power_w == found.joint_power_w == metered(ASKED, 1.3).power_w


def test_boards_never_draw_more_than_all_their_members() -> None:
    """Careful and expected power of boards keep the physical limit, whatever other sets drew."""
    alone = [replace(solo, scope=PowerScope.BOARD) for solo in ALONE]
    taught = [replace(metered(pair, 2.0), scope=PowerScope.BOARD) for pair in SOME]
    found = told(make_book(*alone, *taught))
    assert found.power_w == found.joint_power_w == 70.0


# --- lessons -----------------------------------------------------------------------------------------------


def lesson(families: tuple[str, ...], book: ProfileBook, among: list[str] | None = None) -> float:
    found = LearnedPredictor(0.05).lesson(family_set(families), "T4", 1, book, among)
    assert found is not None
    assert 0 <= found.after <= found.before
    return found.taught


def test_a_trial_is_worth_what_it_could_teach() -> None:
    """The first set of a model teaches more than one more of models that are well known."""
    well_known = [pair for pair in PAIRS if "gamma" not in "".join(pair)]
    book = believed(pair for pair in well_known if pair != ASKED)
    assert lesson(("gamma:16", "alpha:16"), book) > 5 * lesson(ASKED, book) > 0


def test_a_lesson_counts_for_the_families_that_matter() -> None:
    """Among families that a set says little about it is worth less; among none it is worth nothing."""
    book = believed(SOME)
    assert lesson(ASKED, book, ["alpha:16", "beta:32"]) > 0
    assert lesson(ASKED, book, ["gamma:8"]) < lesson(ASKED, book)
    assert lesson(ASKED, book, []) == 0


def test_with_nothing_measured_every_trial_teaches() -> None:
    """A lesson needs no measured set: that is when it is worth most."""
    assert lesson(ASKED, believed([])) > lesson(ASKED, believed(SOME))


def test_among_very_many_families_a_lesson_is_told_of_its_own() -> None:
    """The cost of a lesson does not grow with the square of the families."""
    crowd = [make_solo(f"crowd{number}") for number in range(60)]
    found = LearnedPredictor(0.05).lesson(ASKED, "T4", 1, believed([], *crowd))
    assert found is not None
    families = len(crowd) + len(ALONE)
    assert found.members == 2 * (2 * families - 1) - 2


def test_a_lesson_follows_what_is_known_of_a_family_alone() -> None:
    """A family that nobody has seen in a set has another place among its model once its pace is another."""
    digests = [make_solo(f"task-0000000{index}", unit_s=pace) for index, pace in enumerate((50.0, 100.0))]
    pair = family_set([solo.family for solo in digests])
    before = believed(SOME, *digests)
    after = believed(SOME, digests[0], replace(digests[1], unit_s=3200.0))
    used = LearnedPredictor(0.05)
    first = used.lesson(pair, "T4", 1, before)
    assert used.lesson(pair, "T4", 1, after) == LearnedPredictor(0.05).lesson(pair, "T4", 1, after) != first


def test_the_conservative_rule_learns_from_nobody() -> None:
    """It tells no lesson, and only a family's own profiles change what it says."""
    rule, before, after = ConservativePredictor(0.05), believed([]), believed([ASKED])
    assert rule.lesson(ASKED, "T4", 1, before) is None
    assert rule.families_changed(before, after) == set(ASKED)


# --- in a cycle --------------------------------------------------------------------------------------------


def test_one_more_measured_set_concerns_every_family_on_such_gpus() -> None:
    """Facts that follow a snapshot say of every set what new facts would say."""
    settings = PoolSettings(predictor=PredictorName.LEARNED)
    first = make_snapshot(settings=settings, profiles=believed(SOME))
    facts = CycleFacts(first)
    before = facts.predict(ASKED, "T4", 1)
    second = replace(first, profiles=believed([*SOME, NEW]))
    assert facts.move_to(second) == set(FAMILIES)
    assert facts.predict(ASKED, "T4", 1) == CycleFacts(second).predict(ASKED, "T4", 1) != before


def test_the_same_measured_again_concerns_its_own_families_alone() -> None:
    """A figure that repeats within its rounding changes no other answer, and nobody is told that it does."""
    pair = SOME[1]
    before = believed(SOME)
    after = believed(SOME, replace(measured(pair), samples=9))
    learner = LearnedPredictor(0.05)
    assert learner.families_changed(before, after) == set(pair)
    assert learner.predict(ASKED, "T4", 1, before) == learner.predict(ASKED, "T4", 1, after)


def test_a_pool_predicts_as_before_unless_it_says_otherwise() -> None:
    """The setting comes first, then the policy's own choice, which by default is the conservative rule."""
    book = believed(SOME)
    plain = make_snapshot(profiles=book)
    conservative = make_snapshot(profiles=book, settings=PoolSettings(predictor=PredictorName.CONSERVATIVE))
    assert CycleFacts(plain).predict(ASKED, "T4", 1) == predict(ASKED, "T4", 1, book, 0.05)
    assert CycleFacts(plain, PredictorName.LEARNED).predict(ASKED, "T4", 1) == told(book)
    rule = CycleFacts(conservative, PredictorName.LEARNED)
    assert rule.predict(ASKED, "T4", 1) == predict(ASKED, "T4", 1, book, 0.05)
