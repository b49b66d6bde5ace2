"""Stands for a library that must never be loaded where jobs are started from."""
