"""Meters: what GPUs draw, hold and do."""
