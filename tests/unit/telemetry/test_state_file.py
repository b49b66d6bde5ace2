"""The file that the device model lives in."""

from __future__ import annotations

import logging
import multiprocessing
import stat
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_provider_eaco.telemetry import state_file
from airflow_provider_eaco.telemetry.history import Journal, NodeInterval
from airflow_provider_eaco.telemetry.simulated import SimulatedCluster, simulated_node
from airflow_provider_eaco.telemetry.state_file import StateBusyError, StateFile, decode, encode
from tests.contract.parts import START_S, ManualClock
from tests.unit.telemetry.racer import do_units
from tests.unit.telemetry.rig import TRUTH, device, make_cluster, occupant

SLOW = occupant("a", 1, "slow")
FAST = occupant("b", 2, "fast")


def a_busy_state(folder: Path) -> tuple[Path, ManualClock]:
    """A state with residents, one that left, a unit under way and a history."""
    state, clock = folder / "simulated.json", ManualClock()
    cluster = make_cluster(state, clock)
    cluster.occupy([SLOW, FAST])
    one = device(state, clock, SLOW, clock.advance)
    one.begin_unit()
    one.wait_unit()
    cluster.occupy([SLOW])
    clock.advance(3)
    one.begin_unit()
    return state, clock


def test_a_document_comes_back_as_it_was(tmp_path: Path) -> None:
    """Encoding and decoding lose nothing."""
    state, _ = a_busy_state(tmp_path)
    model = StateFile(state).load()
    assert model is not None
    assert model.departed
    assert model.residents
    assert decode(encode(model)) == model


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_any_truncation_is_noticed_and_repaired(data: st.DataObject) -> None:
    """A file cut anywhere is never believed, never raises, and is whole again after the next declaration."""
    with tempfile.TemporaryDirectory() as folder:
        state, clock = a_busy_state(Path(folder))
        whole = state.read_bytes()
        cut = data.draw(st.integers(0, len(whole) - 1))
        state.write_bytes(whole[:cut])
        if cut == len(whole) - 1:  # the last newline alone is missing
            return
        assert StateFile(state).load() is None
        cluster = make_cluster(state, clock)
        cluster.occupy([SLOW])
        readings = cluster.read()
        assert [reading.power_w for reading in readings] == [100, 49]
        assert all(reading.energy_j == 0 for reading in readings)


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_a_changed_byte_is_noticed(data: st.DataObject) -> None:
    """A document in which any byte was changed is either refused or says the same."""
    with tempfile.TemporaryDirectory() as folder:
        state, _ = a_busy_state(Path(folder))
        whole = state.read_bytes()
        believed = decode(whole)
        place = data.draw(st.integers(0, len(whole) - 1))
        byte = data.draw(st.integers(0, 255))
        state.write_bytes(whole[:place] + bytes([byte]) + whole[place + 1 :])
        assert StateFile(state).load() in (None, believed)


def test_a_damaged_state_is_made_anew_with_a_warning(
    state: Path, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    """The loss of counters is said, once; a first start is no loss."""
    cluster = make_cluster(state, clock)
    with caplog.at_level(logging.WARNING):
        cluster.read()
        assert not caplog.records
        state.write_bytes(b"\x00\xff{")
        cluster.read()
        cluster.read()
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "begins anew" in caplog.text


@pytest.mark.parametrize("moment", ["journal.append", "before the document", "before the exchange"])
def test_a_kill_while_storing_leaves_the_state_before_it(
    state: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    """Whoever dies while it stores a change leaves a state from which the next caller goes on; no segment is
    lost or told twice.
    """

    class KilledError(BaseException):
        pass

    def killed(*_args: object) -> None:
        raise KilledError

    cluster = make_cluster(state, clock)
    cluster.occupy([SLOW])
    clock.advance(40)
    with monkeypatch.context() as patch:
        if moment == "journal.append":
            patch.setattr(Journal, "append", killed)
        elif moment == "before the document":
            patch.setattr(state_file, "encode", killed)
        else:
            patch.setattr(Path, "replace", killed)
        with pytest.raises(KilledError):
            cluster.occupy([])
    clock.advance(10)
    cluster.occupy([])
    history = cluster.history()
    assert history is not None
    (segment,) = history.residents
    # The clock was held for 30 of the 50 wall seconds.
    assert (segment.start_s, segment.end_s) == pytest.approx((0, 12_000))
    assert segment.energy_j == pytest.approx(100 * 12_000)


def test_a_torn_line_of_the_journal_is_passed_over(tmp_path: Path) -> None:
    """A writer that died in a line costs that line at most; what is written after it is read."""
    path = tmp_path / "journal"
    journal = Journal(path)
    first, second = (NodeInterval("n1", start_s, start_s + 1, 49.0, 0, 1) for start_s in (0.0, 1.0))
    journal.append(START_S, 0, [first, second])
    path.write_bytes(path.read_bytes()[:-20])
    assert journal.read(START_S, 2) == (first,)
    journal.append(START_S, 1, [second])
    assert journal.read(START_S, 2) == (first, second)
    assert journal.read(START_S, 1) == (first,)
    assert journal.read(START_S + 1, 2) == ()


def test_the_journal_keeps_one_older_file(tmp_path: Path) -> None:
    """The history does not grow without end: above its size the file makes room, the one before goes."""
    path = tmp_path / "journal"
    journal = Journal(path, max_bytes=1000)
    for number in range(100):
        journal.append(START_S, number, [NodeInterval("n1", float(number), number + 1.0, 49.0, 0, 1)])
    assert sum(file.stat().st_size for file in tmp_path.iterdir()) < 2 * 1300
    kept = journal.read(START_S, 100)
    assert [segment.end_s for segment in kept] == [float(number) for number in range(101 - len(kept), 101)]
    assert len(kept) >= 8


def test_a_lock_that_is_never_given_back_is_reported(
    state: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A holder that hangs stops nobody for long: the change is refused, reading goes on."""
    cluster = make_cluster(state, clock)
    cluster.occupy([SLOW])
    monkeypatch.setattr(state_file, "LOCK_TIMEOUT_S", 0.05)
    with StateFile(state).change(clock.now_s()):
        with pytest.raises(StateBusyError):
            cluster.occupy([])
        assert cluster.read()[0].power_w == 100
    cluster.occupy([])
    assert cluster.read()[0].power_w == 49


def test_a_state_that_cannot_be_written_reads_as_unknown(tmp_path: Path, clock: ManualClock) -> None:
    """Where no state can be made, every value is unknown; nothing is raised."""
    (tmp_path / "file").touch()
    readings = make_cluster(tmp_path / "file" / "state.json", clock).read()
    assert len(readings) == 2
    assert {(reading.power_w, reading.energy_j, reading.utilisation_pct) for reading in readings} == {
        (None, None, None)
    }


def test_a_segment_is_stored_once(state: Path, clock: ManualClock) -> None:
    """What was written to the history is no longer the model's to write."""
    make_cluster(state, clock).occupy([SLOW])
    clock.advance(40)
    with StateFile(state).change(clock.now_s()) as model:
        assert model is not None
        model.occupy([], TRUTH.of)
        assert len(model.closed) == 2
    assert model.closed == []
    assert model.journal_count == 2


def test_other_users_of_the_machine_may_use_the_files(state: Path, clock: ManualClock) -> None:
    """The files have the permissions that the umask allows, since tasks may run as other users."""
    make_cluster(state, clock).occupy([SLOW])
    for path in (state, state.with_name(state.name + ".lock")):
        assert stat.S_IMODE(path.stat().st_mode) & 0o044 == 0o044


def test_processes_race_for_one_file(state: Path) -> None:
    """No unit of any process is lost, however their changes fall between each other, on the real clock."""
    cluster = SimulatedCluster(state, [simulated_node("n1", 4)], TRUTH, time_scale=600 / 0.005)
    cluster.occupy([occupant(f"job-{token}", token, "other", (token,)) for token in range(3)])
    context = multiprocessing.get_context("spawn")
    processes = [context.Process(target=do_units, args=(state, token, 15)) for token in range(3)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(120)
    assert [process.exitcode for process in processes] == [0, 0, 0]
    accounts = [cluster.account(f"job-{token}", token) for token in range(3)]
    assert [account and account.units_done for account in accounts] == [15, 15, 15]
    assert [account and account.work_s for account in accounts] == [pytest.approx(15 * 600)] * 3
