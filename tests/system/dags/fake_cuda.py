"""Stands for a GPU library, which looks once, on import, at the devices that it may see."""

from __future__ import annotations

import os

SEEN = os.environ.get("CUDA_VISIBLE_DEVICES", "")
