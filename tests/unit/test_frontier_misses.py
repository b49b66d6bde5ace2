"""Which limits a run missed by what its trials burnt."""

from __future__ import annotations

from pathlib import Path

from airflow_provider_eaco.simulator.report.results import read_run
from bench.frontier_misses import misses_of
from tests.unit.simulator.run_folders import run_folder

JOBS = """job_id,family,gpus,submit_s,work_s,stretch_limit,priority
a,J1,8,0,1000,1.1,0
b,J4,8,0,1000,,0
c,J1,8,0,1000,1.1,0
d,J4,8,0,1000,1.3,0
e,J1,8,0,1000,1.1,0
f,J4,8,0,1000,1.1,0
"""
# a and b try the pair, and each has its epoch of 200 s after 250; c and d begin one later, e and f a pause.
SCHEDULE = """job_id,start_s,end_s,node,gpus,residents,rate
a,0,750,node-0,0;1;2;3;4;5;6;7,a;b,0.8
b,0,750,node-0,0;1;2;3;4;5;6;7,a;b,0.8
a,750,1150,node-0,0;1;2;3;4;5;6;7,a,1
b,750,1150,node-1,0;1;2;3;4;5;6;7,b,1
c,800,1550,node-2,0;1;2;3;4;5;6;7,c;d,0.8
d,800,1550,node-2,0;1;2;3;4;5;6;7,c;d,0.8
c,1550,1950,node-2,0;1;2;3;4;5;6;7,c,1
d,1550,1950,node-3,0;1;2;3;4;5;6;7,d,1
e,0,500,node-4,0;1;2;3;4;5;6;7,e,1
e,700,1200,node-4,0;1;2;3;4;5;6;7,e,1
f,0,1000,node-5,0;1;2;3;4;5;6;7,f,1
"""


def test_a_limit_is_missed_by_a_trial_only_where_nobody_had_tried_such_a_set_before(tmp_path: Path) -> None:
    """The first of two equal pairs burns its member's limit, the second and a pause are somebody's choice."""
    assert misses_of(read_run(run_folder(tmp_path, JOBS, SCHEDULE))) == (1, 2)
