"""Choose how many examples property tests try: few in every run, more in CI, most at night.

`FRX_TIER` names the tier: `default`, `all` or `nightly`. Tests name no counts of their own. One whose examples take
long each says `@settings(FEW_EXAMPLES)`.
"""

from __future__ import annotations

import os

from hypothesis import settings

EXAMPLES = {"default": 40, "all": 150, "nightly": 3000}
TIER = os.environ.get("FRX_TIER", "default")
PROFILE = "frx"

# No deadline, since a busy machine must not fail a test; the same examples on every run in CI.
settings.register_profile(
    PROFILE, deadline=None, max_examples=EXAMPLES[TIER], derandomize=bool(os.environ.get("CI")), print_blob=True
)
FEW_EXAMPLES = settings(settings.get_profile(PROFILE), max_examples=EXAMPLES[TIER] // 10)

settings.load_profile(PROFILE)  # before test modules make settings of their own
