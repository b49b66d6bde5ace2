"""Readers: what no run could be made of, or no file of a run could hold."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.simulator.test_readers import HEADER, PHILLY_HOUR, philly, problem_of

BAD_TABLES = {
    "a-duration-of-ages": (
        HEADER + "a,J1,1,0,1000000000,,\nb,J1,1,5,1e300,,\n",
        "line 3, column work_s: 1e+300 s of run time; expected at most 1e+09 s (thirty years)",
    ),
    "a-submission-after-ages": (
        HEADER + "a,J1,1,1e9,10,,\nb,J1,1,2e9,10,,\nc,J1,1,2000000001,10,,\n",
        "line 4, column submit_s: 1e+09 s after the first; expected at most 1e+09 s (thirty years)",
    ),
    "an-id-that-reads-as-two": (
        HEADER + "a;b,J1,1,0,10,,\n",
        "line 2, column job_id: 'a;b'; expected an id without ';', and without blanks at its ends",
    ),
    "itp-ages": (
        "job_id,submission_time,duration,num_gpu\na,0,1e12,1",
        "line 2, column duration: 1e+12 s of run time; expected at most 1e+09 s (thirty years)",
    ),
    "helios-ages": (
        "job_id,vc,gpu_num,state,submit_time,duration,queue\n1,v,1,COMPLETED,2020-04-01 00:00:00,1e12,0\n",
        "line 2, column duration: 1e+12 s of run time; expected at most 1e+09 s (thirty years)",
    ),
    "helios-two-in-one": (
        "job_id,vc,gpu_num,state,submit_time,duration,queue\n1;2,v,1,COMPLETED,2020-04-01 00:00:00,5,0\n",
        "line 2, column job_id: '1;2'; expected an id without ';', and without blanks at its ends",
    ),
    "openb-ages": (
        "name,num_gpu,qos,creation_time,deletion_time,scheduled_time\np,1,LS,10,1e12,20\n",
        "line 2, column deletion_time: 1e+12 s of run time; expected at most 1e+09 s (thirty years)",
    ),
    "philly-ages": (
        "submit_s,duration_s,num_gpus,vc\n1,1e12,1,v\n",
        "line 2, column duration_s: 1e+12 s of run time; expected at most 1e+09 s (thirty years)",
    ),
}


@pytest.mark.parametrize("name", BAD_TABLES)
def test_a_table_beyond_the_limits(name: str, tmp_path: Path) -> None:
    """Run times and traces of over thirty years, and ids that read as two, get one line with the place."""
    text, message = BAD_TABLES[name]
    assert problem_of(tmp_path, text) == f"trace.csv, {message}"


BAD_JOB_LOGS = {
    "no-printable-id": (philly(jobid="\ud800"), 'jobid: "\\ud800"; expected a text in printable characters'),
    "blanks-around-an-id": (philly(jobid=" b"), "job 2, column jobid: ' b'; expected an id without ';', and"),
    "an-attempt-of-ages": (
        philly(
            attempts=[
                {"start_time": PHILLY_HOUR, "end_time": "2057-10-07 01:00:00", "detail": [{"gpus": ["gpu0"]}]}
            ]
        ),
        "job 2, column attempts: 1.2623e+09 s of run time; expected at most 1e+09 s (thirty years)",
    ),
}


@pytest.mark.parametrize("name", BAD_JOB_LOGS)
def test_a_job_log_beyond_the_limits(name: str, tmp_path: Path) -> None:
    """Philly's job log is held to the same."""
    text, message = BAD_JOB_LOGS[name]
    assert message in problem_of(tmp_path, text, "philly-json", "log.json")
