"""Blocks: which of a node's free GPUs to take, so that the large shapes stay whole.

GPUs of a node are the bits of a mask, by index. A block is 2^k neighbours that start at a multiple of 2^k:
the shape in which gangs talk over the fast links, and the only one in which halves can be joined again.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache

from airflow_provider_eaco.core.model.gpu import Gpu


class BlockTable(dict[int, int]):
    """For each mask of free GPUs the mask to take for one number of GPUs, 0 if it cannot be had.

    ``block_size`` has, for each mask looked up, the size of the free block that is broken into.

    The smallest free block that holds them is taken, the lowest of several. Without one, a strict table gives
    nothing; another gathers what lies in the smallest blocks.
    """

    def __init__(self, gpus: int, *, strict: bool) -> None:
        super().__init__()
        self.block_size: dict[int, int] = {}
        self.gpus = gpus
        self._strict = strict

    def __missing__(self, free: int) -> int:
        taken = self[free] = self._take(free)
        return taken

    def _take(self, free: int) -> int:
        if free.bit_count() < self.gpus:
            return 0
        blocks = sorted(free_blocks(free))
        for size, offset in blocks:
            if size >= self.gpus:
                self.block_size[free] = size
                return ((1 << self.gpus) - 1) << offset
        if self._strict:
            return 0
        taken, wanted = 0, self.gpus
        self.block_size[free] = self.gpus
        for size, offset in blocks:
            part = min(size, wanted)
            taken |= ((1 << part) - 1) << offset
            wanted -= part
            if not wanted:
                break
        return taken


@cache
def block_table(gpus: int, strict: bool) -> BlockTable:  # a key of the cache
    """Return the table for that many GPUs; all callers share it, since it follows from its arguments."""
    return BlockTable(gpus, strict=strict)


def free_blocks(free: int) -> list[tuple[int, int]]:
    """Return the largest blocks that are wholly free, as (size, first index), by index."""
    blocks = []
    offset = 0
    while free >> offset:
        if not free >> offset & 1:
            offset += 1
            continue
        size = 1
        # A block of twice the size has to start here, and its other half has to be free.
        while offset % (2 * size) == 0 and (free >> offset + size) & ((1 << size) - 1) == (1 << size) - 1:
            size *= 2
        blocks.append((size, offset))
        offset += size
    return blocks


def largest_block(free: int) -> int:
    """Return the size of the largest free block, 0 without free GPUs."""
    return max((size for size, _ in free_blocks(free)), default=0)


def bit_of(gpu: Gpu) -> int:
    """Return the GPU's bit in its node's masks, 0 for one whose index is not known."""
    return 1 << gpu.index if gpu.index >= 0 else 0


def mask_of(gpus: Iterable[Gpu]) -> int:
    """Return the GPUs as a mask."""
    mask = 0
    for gpu in gpus:
        mask |= bit_of(gpu)
    return mask
