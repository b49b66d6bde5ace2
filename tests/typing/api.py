"""How a user's code uses the public names; checked by mypy, never run.

A line that must be refused carries the code that mypy has to report; an unused one fails the check.
"""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import assert_type

from airflow_provider_eaco import InvalidRequestError, TrainingRun, gpu_request, training_run

config = gpu_request(
    gpus=2,
    gpu_memory="10GiB",
    gpu_model=["A100", "V100"],
    host_memory=4096,
    profile="resnet50-b64",
    profile_params={"batch": 64},
    max_stretch=1.1,
    deadline=timedelta(hours=6),
    share="never",
    shiftable=True,
    executor_config={"other": 1},
)
config["eaco"]

with training_run(epochs=90) as run:
    assert_type(run, TrainingRun)
    assert_type(run.checkpoint, str | None)
    for epoch in run.epochs():
        assert_type(epoch, int)
        run.report(loss=0.5, accuracy=0.9, checkpoint=Path("model.npz"))
    assert_type(run.units_done, int)

try:
    gpu_request(gpus=99)
except InvalidRequestError as error:
    assert_type(error.argument, str)

gpu_request(gpus="1")  # type: ignore[arg-type]  # the type checker must refuse it
gpu_request(gpu_mem="1GiB")  # type: ignore[arg-type]  # the type checker must refuse it
gpu_request(share=0.6)  # type: ignore[arg-type]  # the type checker must refuse it
training_run(epochs="90")  # type: ignore[arg-type]  # the type checker must refuse it
run.report(checkpoint=1)  # type: ignore[arg-type]  # the type checker must refuse it
