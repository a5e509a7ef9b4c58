"""One profile for all property tests: the same examples on every run, and few enough to stay quick."""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("deterministic", derandomize=True, database=None, deadline=None, max_examples=60)
settings.load_profile("deterministic")
