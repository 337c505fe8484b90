"""What holds for all tests."""

from __future__ import annotations

import os

from hypothesis import settings

# No deadline, since a busy machine must not fail a test; the same examples on every run where CI is set.
settings.register_profile("frx", deadline=None, derandomize=bool(os.environ.get("CI")))
settings.load_profile("frx")
