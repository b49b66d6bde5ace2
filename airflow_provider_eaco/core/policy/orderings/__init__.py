"""Orderings beyond fifo and sjf: by a key, by backfill, and by planning ahead."""
