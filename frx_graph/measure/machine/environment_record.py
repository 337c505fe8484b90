"""Define the environment that an operator's measurement depends on; equal fingerprints may share measurements.

The record does not import torch, so files that contain it can be read without torch. `get_measurement_environment`
makes it.
"""

from __future__ import annotations

import hashlib
from dataclasses import asdict, dataclass


@dataclass(frozen=True, slots=True)
class MeasurementEnvironment:
    """The versions, the device and the settings that decide which kernels torch's operators take."""

    torch: str
    device: str
    device_name: str
    cpu_capability: str
    onednn: str
    threads: int
    settings: str

    @property
    def fingerprint(self) -> str:
        """Sixteen hexadecimal digits."""
        text = "\n".join(f"{name}={value}" for name, value in sorted(asdict(self).items()))
        return hashlib.sha256(text.encode()).hexdigest()[:16]
