"""How a program says that a GPU's memory did not suffice. Loaded by training code, so it imports nothing.

Airflow tells its executor only that a task has failed. So the exception is recognised in the task's own
process, while the task can still leave in a way that uses up no retry.
"""

from __future__ import annotations

from collections.abc import Iterator

# A task leaves for this reason at most so often in one try; then it fails as it would without us.
MAX_RELAUNCHES = 2

_NAMES = frozenset({"OutOfMemoryError", "ResourceExhaustedError", "XlaRuntimeError"})
# PyTorch, CuPy, cuDNN, cuBLAS, TensorFlow and JAX, numba.
_TEXTS = (
    "cuda out of memory",
    "cuda error: out of memory",
    "cuda_error_out_of_memory",
    "cudaerrormemoryallocation",
    "cudnn_status_alloc_failed",
    "cublas_status_alloc_failed",
    "resource_exhausted: out of memory",
)


def is_out_of_memory(error: BaseException) -> bool:
    """Tell whether the error, or one that it came from, says that a GPU's memory did not suffice.

    Python's own ``MemoryError`` is about the machine's memory, and no GPU helps there.
    """
    return any(_says_so(each) for each in _with_causes(error))


def _says_so(error: BaseException) -> bool:
    text = str(error).lower()
    if any(each in text for each in _TEXTS):
        return True
    return type(error).__name__ in _NAMES and "out of memory" in text


def _with_causes(error: BaseException) -> Iterator[BaseException]:
    seen: set[int] = set()
    present: BaseException | None = error
    while present is not None and id(present) not in seen:
        seen.add(id(present))
        yield present
        present = present.__cause__ or present.__context__
