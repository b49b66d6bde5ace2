"""Measures what the documentation claims about speed; run by ``make bench``."""
