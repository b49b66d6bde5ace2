"""Readers: what each log becomes, and the one message that every bad file gets."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_provider_eaco.simulator.readers import READERS, read_trace
from airflow_provider_eaco.simulator.trace import Trace, TraceError, TraceJob, trace_text, write_trace
from tests.unit.simulator.benchmark_data import ROOT, benchmark_data

TRACES = ROOT / "tests" / "data" / "traces"
HEADER = "job_id,family,gpus,submit_s,work_s,stretch_limit,priority\n"
PHILLY_HOUR = "2017-10-07 01:00:00"


def read_text(tmp_path: Path, text: str, trace_format: str = "auto", name: str = "trace.csv") -> Trace:
    path = tmp_path / name
    path.write_text(text, encoding="utf-8", newline="")
    return read_trace(path, trace_format)


def problem_of(tmp_path: Path, text: str, trace_format: str = "auto", name: str = "trace.csv") -> str:
    with pytest.raises(TraceError) as caught:
        read_text(tmp_path, text, trace_format, name)
    assert "\n" not in str(caught.value)
    return str(caught.value).removeprefix(str(tmp_path) + "/")


GOOD = {
    "eaco.csv": (
        [
            TraceJob("first", "J1", 8, 0.0, 3600.0, 1.05, 0),
            TraceJob("second", "J2", 8, 120.0, 7200.0, 1.15, 0),
            TraceJob("third", "J4", 8, 120.0, 1800.5, None, 5),
            TraceJob("fourth", "J3", 8, 4000.0, 5400.0, 1.15, -1),
        ],
        {},
    ),
    "itp.csv": (
        [
            TraceJob("a", "unknown", 1, 0.0, 600.0),
            TraceJob("b", "unknown", 2, 600.0, 700.0),
            TraceJob("c", "unknown", 4, 600.0, 50.0),
        ],
        {},
    ),
    "philly.csv": (
        [
            TraceJob("philly-2", "unknown", 1, 0.0, 50.0, pool="v1"),
            TraceJob("philly-4", "unknown", 8, 60.0, 20.0, pool="v2"),
        ],
        {"did not run": 1},
    ),
    "helios_cluster_log.csv": (
        [
            TraceJob("14", "unknown", 1, 0.0, 100.0, pool="vcB", wait_s=0.0),
            TraceJob("11", "unknown", 8, 180.0, 3600.0, pool="vcA", wait_s=60.0),
        ],
        {"no GPU": 1, "did not run": 1},
    ),
    "openb_pods.csv": (
        [
            TraceJob("pod-2", "unknown", 2, 0.0, 1000.0, pool="BE", wait_s=0.0),
            TraceJob("pod-1", "unknown", 1, 100.0, 590.0, pool="LS", wait_s=10.0),
        ],
        {"no GPU": 1, "never placed": 1},
    ),
    "philly_job_log.json": (
        [
            TraceJob("app_2", "unknown", 1, 0.0, 100.0, pool="v2", wait_s=0.0),
            TraceJob("app_1", "unknown", 4, 1800.0, 4200.0, pool="v1", wait_s=600.0),
        ],
        {"did not run": 1, "not ended when the log was made": 1},
    ),
}


@pytest.mark.parametrize("name", GOOD)
def test_a_log_becomes_jobs(name: str) -> None:
    """Each format is known by its looks and gives jobs by submission; what is left out is counted."""
    jobs, skipped = GOOD[name]
    trace = read_trace(TRACES / name)
    assert list(trace.jobs) == jobs
    assert trace.skipped == skipped


SHOWN_BY = {
    "eaco.csv": "eaco",
    "itp.csv": "itp",
    "philly.csv": "philly-csv",
    "helios_cluster_log.csv": "helios",
    "openb_pods.csv": "openb",
    "philly_job_log.json": "philly-json",
}

BAD_CSV = {
    "an-empty-file": (
        "",
        "trace.csv: the file is empty; expected a header with job_id, family, gpus, submit_s, work_s",
    ),
    "a-header-alone": (
        HEADER,
        "trace.csv, line 2: no job; expected at least one line after the header",
    ),
    "a-missing-column": (
        "job_id,family,submit_s,work_s\na,J1,0,10\n",
        (
            "trace.csv, line 1, column gpus: no such column in the header; "
            "expected job_id, family, gpus, submit_s, work_s"
        ),
    ),
    "an-unknown-column": (
        "job_id,family,gpus,submit_s,work_s,colour\na,J1,1,0,10,red\n",
        (
            "trace.csv, line 1, column 'colour': unknown; expected job_id, family, gpus, submit_s, work_s, "
            "stretch_limit, priority, pool, queue, dag_id, wait_s"
        ),
    ),
    "a-column-named-twice": (
        "job_id,family,gpus,submit_s,work_s,gpus\na,J1,1,0,10,1\n",
        "trace.csv, line 1, column 'gpus': named twice; expected every column once",
    ),
    "a-negative-duration": (
        HEADER + "a,J1,1,0,10,,\nb,J1,1,5,-10,,\n",
        "trace.csv, line 3, column work_s: '-10'; expected a number above 0, in seconds",
    ),
    "a-duration-of-nothing": (
        HEADER + "a,J1,1,0,0,,\n",
        "trace.csv, line 2, column work_s: '0'; expected a number above 0, in seconds",
    ),
    "not-a-number": (
        HEADER + "a,J1,1,nan,10,,\n",
        "trace.csv, line 2, column submit_s: 'nan'; expected a number of at least 0, in seconds",
    ),
    "unsorted": (
        HEADER + "a,J1,1,50,10,,\nb,J1,1,49.5,10,,\n",
        "trace.csv, line 3, column submit_s: 49.5 is before 50 of line 2; expected jobs by submission",
    ),
    "a-duplicate-id": (
        HEADER + "a,J1,1,0,10,,\nb,J1,1,1,10,,\na,J1,1,2,10,,\n",
        "trace.csv, line 4, column job_id: 'a' stands in line 2 already; expected every id once",
    ),
    "half-a-gpu": (
        HEADER + "a,J1,0.5,0,10,,\n",
        "trace.csv, line 2, column gpus: '0.5'; expected a whole number of at least 1",
    ),
    "no-family": (
        HEADER + "a,,1,0,10,,\n",
        "trace.csv, line 2, column family: empty; expected a name in printable characters",
    ),
    "a-limit-below-one": (
        HEADER + "a,J1,1,0,10,0.9,\n",
        (
            "trace.csv, line 2, column stretch_limit: '0.9'; "
            "expected a number of at least 1, in run time / run time alone (empty for none)"
        ),
    ),
    "too-many-cells": (
        HEADER + "a,J1,1,0,10,,,,\nb,J1,1,0,10,,\n",
        "trace.csv, line 2, column priority: 9 cells; expected 7, one per column of line 1",
    ),
    "cut-between-cells": (
        HEADER + "a,J1,1,0,10,,\nb,J1,1",
        (
            "trace.csv, line 3, column gpus: 3 cells; expected 7, one per column of line 1 "
            "(the file ends here: was it cut?)"
        ),
    ),
    "cut-inside-the-last-cell": (
        HEADER + "a,J1,1,0,10,,\nb,J1,1,0,10,,1",
        (
            "trace.csv, line 3, column priority: the file ends inside this line; "
            "expected a line break after its last cell (was it cut?)"
        ),
    ),
    "cut-inside-quotes": (
        HEADER + 'a,"J1',
        "trace.csv, line 2: not CSV: unexpected end of data; was it cut?",
    ),
}


@pytest.mark.parametrize("name", BAD_CSV)
def test_a_bad_trace_has_one_message(name: str, tmp_path: Path) -> None:
    """A bad trace gives one line: file, line, column, what is there and what was expected."""
    text, message = BAD_CSV[name]
    assert problem_of(tmp_path, text) == message


BAD_LOGS = {
    "itp-negative": (
        "job_id,submission_time,duration,num_gpu\na,0,-5,1",
        "line 2, column duration: '-5'; expected a number above 0, in seconds",
    ),
    "helios-no-date": (
        "job_id,vc,gpu_num,state,submit_time,duration,queue\n1,v,1,COMPLETED,yesterday,5,0\n",
        "line 2, column submit_time: 'yesterday'; expected a date and time such as 2020-04-01 13:05:00",
    ),
    "openb-backwards": (
        "name,num_gpu,qos,creation_time,deletion_time,scheduled_time\np,1,LS,10,15,20\n",
        "line 2, column deletion_time: 15 is before scheduled_time 20; expected a duration of at least 0",
    ),
    "philly-cut": (
        "submit_s,duration_s,num_gpus,vc\n1,2,1,v\n3,4,1,v",
        (
            "line 3, column vc: the file ends inside this line; expected a line break after its last cell "
            "(was it cut?)"
        ),
    ),
}


@pytest.mark.parametrize("name", BAD_LOGS)
def test_a_bad_log_has_one_message(name: str, tmp_path: Path) -> None:
    """Logs of other projects are held to the same."""
    text, message = BAD_LOGS[name]
    assert problem_of(tmp_path, text) == f"trace.csv, {message}"


def philly(**changed: object) -> str:
    import json

    entry = {"jobid": "a", "vc": "v", "submitted_time": PHILLY_HOUR, "attempts": []}
    return json.dumps([entry, {**entry, "jobid": "b", **changed}])


BAD_JSON = {
    "cut": (philly()[:-9], "line 1, column"),
    "no-list": ("{}", "line 1: a JSON dict; expected a list of jobs"),
    "empty-list": ("[]", "no job; expected a list of at least one"),
    "a-list-of-numbers": ("[1]", "job 1, column jobid: 1; expected an object with this field"),
    "no-id": (philly(jobid=None), "job 2, column jobid: null; expected a text"),
    "an-id-twice": (philly(jobid="a"), "job 2, column jobid: 'a' stands in job 1 already; "),
    "no-submission": (philly(submitted_time=None), "job 2, column submitted_time: null; expected a date and"),
    "a-date-that-is-none": (
        philly(attempts=[{"start_time": ["x"], "end_time": None, "detail": []}]),
        'job 2, column start_time: ["x"]; expected a date and time such as 2017-10-07 01:13:58',
    ),
    "backwards": (
        philly(attempts=[{"start_time": PHILLY_HOUR, "end_time": "2017-10-07 00:59:59", "detail": []}]),
        'job 2, column end_time: "2017-10-07 00:59:59"; expected an instant after start_time',
    ),
}


@pytest.mark.parametrize("name", BAD_JSON)
def test_a_bad_job_log_has_one_message(name: str, tmp_path: Path) -> None:
    """A bad JSON log names the line of the syntax error, or the job and its field."""
    text, message = BAD_JSON[name]
    assert message in problem_of(tmp_path, text, "philly-json", "log.json")


def test_a_cut_log_says_so(tmp_path: Path) -> None:
    """A JSON log that ends in the middle asks whether it was cut."""
    whole = (TRACES / "philly_job_log.json").read_text()
    for length in range(1, len(whole) - 2, 97):
        assert "log.json, line " in problem_of(tmp_path, whole[:length], "philly-json", "log.json")


def test_a_csv_cut_anywhere_is_refused(tmp_path: Path) -> None:
    """Wherever our own file is cut inside a line, it is refused."""
    whole = (TRACES / "eaco.csv").read_text()
    for length in range(1, len(whole)):
        if whole[length - 1] != "\n":
            assert "trace.csv" in problem_of(tmp_path, whole[:length], "eaco")


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    """A missing file is named with the system's reason."""
    with pytest.raises(TraceError, match=r"nothing\.csv: cannot be read: No such file"):
        read_trace(tmp_path / "nothing.csv")


def test_bytes_that_are_no_text(tmp_path: Path) -> None:
    """A byte that is no UTF-8 is named with its line."""
    path = tmp_path / "trace.csv"
    path.write_bytes(HEADER.encode() + b"caf\xe9,J1,1,0,10,,\n")
    with pytest.raises(TraceError, match="line 2: byte 0xe9; expected text in UTF-8"):
        read_trace(path)


def test_an_unknown_format(tmp_path: Path) -> None:
    """An unknown format names those that there are."""
    assert "expected one of auto, eaco, philly-json" in problem_of(tmp_path, HEADER, "slurm")


def test_windows_files_are_read(tmp_path: Path) -> None:
    """A byte order mark and CR LF change nothing."""
    text = "\ufeff" + (TRACES / "eaco.csv").read_text().replace("\n", "\r\n")
    assert read_text(tmp_path, text).jobs == read_trace(TRACES / "eaco.csv").jobs


def test_what_is_written_is_read_back(tmp_path: Path) -> None:
    """A trace that is written and read is the same, with the columns that a history has besides."""
    jobs = [
        TraceJob("a", "J1", 8, 0.0, 10.125, 1.05, 3, pool="gpus", dag_id="train", wait_s=4.5),
        TraceJob("b", "Model:64", 1, 0.5, 123456789.0),
    ]
    write_trace(tmp_path / "deep" / "trace.csv", jobs)
    assert list(read_trace(tmp_path / "deep" / "trace.csv").jobs) == jobs
    assert [path.name for path in (tmp_path / "deep").iterdir()] == ["trace.csv"]
    assert trace_text(jobs[1:]).splitlines()[0] == HEADER.strip()


def test_a_job_larger_than_the_cluster() -> None:
    """The first job that can never start is named with its line and what there is."""
    trace = read_trace(TRACES / "eaco.csv")
    trace.check_fits(8)
    with pytest.raises(TraceError) as caught:
        trace.check_fits(4, "nodes of 4 GPUs")
    assert str(caught.value).endswith(
        "eaco.csv, line 2, column gpus: job 'first' needs 8 GPUs; expected at most 4, "
        "the most that one job can get on nodes of 4 GPUs"
    )


PUBLIC = [
    ("itp_traces/cluster10.csv", 260, {}),
    ("itp_traces/cluster01.csv", 1595, {}),
    ("philly_trace/jobs.csv", 54_768, {}),
    ("openb_trace/pods.csv", 4132, {"no GPU": 764, "never placed": 457}),
]


@pytest.mark.parametrize(("name", "count", "skipped"), PUBLIC)
def test_the_public_traces_are_read(name: str, count: int, skipped: dict[str, int]) -> None:
    """The public logs give the numbers of jobs that their descriptions name."""
    trace = read_trace(benchmark_data(name))
    assert (len(trace.jobs), trace.skipped) == (count, skipped)


@settings(deadline=None, max_examples=150)
@given(st.sampled_from(sorted(READERS)), st.data())
def test_no_text_breaks_a_reader(trace_format: str, data: st.DataObject) -> None:
    """Whatever is in a file, and however a good one is damaged, the answer is a trace or its one message."""
    good = next((TRACES / name).read_text() for name in GOOD if SHOWN_BY[name] == trace_format)
    start = data.draw(st.integers(0, len(good)))
    end = data.draw(st.integers(start, min(len(good), start + 40)))
    text = good[:start] + data.draw(st.text(max_size=20)) + good[end:]
    with suppress(TraceError):
        trace = READERS[trace_format]("file", text)
        assert all(job.work_s > 0 and job.gpus >= 1 and job.submit_s >= 0 for job in trace.jobs)


@pytest.mark.parametrize("text", ["[" * 100_000, "[1" + "0" * 5000 + "]"], ids=["deep", "long"])
def test_json_that_cannot_be_held(tmp_path: Path, text: str) -> None:
    """Brackets and digits without end get a message too."""
    assert "log.json" in problem_of(tmp_path, text, "philly-json", "log.json")


def test_every_format_is_told() -> None:
    """Each format has a small synthetic file here."""
    assert sorted(SHOWN_BY.values()) == sorted(READERS)
    assert SHOWN_BY.keys() == GOOD.keys()
