"""Settings of a service: address, access, and limits of one request."""

from __future__ import annotations

import ipaddress
import os

from pydantic import BaseModel, ConfigDict, Field, SecretStr, field_validator, model_validator

SHORTEST_TOKEN = 16
"""Characters. Whoever can ask without end finds a short one."""
MEGABYTE = 1 << 20
TOKEN_VARIABLE = "FRX_SERVE_TOKEN"
"""Where the token is, if it is in no file."""


def is_loopback(host: str) -> bool:
    """Return True if only this machine reaches `host`."""
    if not is_address(host):
        return host.lower() == "localhost"
    address = ipaddress.ip_address(host.strip("[]"))
    return (getattr(address, "ipv4_mapped", None) or address).is_loopback


def is_address(host: str) -> bool:
    """Return True for an IPv4 or IPv6 address."""
    try:
        ipaddress.ip_address(host.strip("[]"))
    except ValueError:
        return False
    return True


def count_default_workers() -> int:
    """Return the number of cores, at most four: an analysis has one thread."""
    return max(1, min(4, os.cpu_count() or 1))


class ServiceSettings(BaseModel):
    """Settings, checked as a whole: without a token, only this machine is served."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    host: str = "127.0.0.1"
    port: int = Field(default=8787, ge=0, le=65535, description="0: any free one")
    token: SecretStr | None = None
    allowed_hosts: tuple[str, ...] = Field(default=(), description="names that the service is asked by, besides `host`")
    upload_bytes: int = Field(default=512 * MEGABYTE, ge=1, description="of a body with files")
    text_bytes: int = Field(default=16 * MEGABYTE, ge=1, description="of a body that is JSON")
    held_bytes: int = Field(default=4096 * MEGABYTE, ge=1, description="of all bodies with files at one time")
    held_text_bytes: int = Field(default=256 * MEGABYTE, ge=1, description="of all JSON bodies, which are in memory")
    result_bytes: int = Field(default=64 * MEGABYTE, ge=1, description="of an answer")
    body_seconds: float = Field(default=300.0, gt=0, description="in which a body must have arrived")
    idle_seconds: float = Field(default=30.0, gt=0, description="between two parts of a body")
    analysis_seconds: float = Field(default=60.0, gt=0, description="that one analysis may take")
    analysis_bytes: int = Field(
        default=2048 * MEGABYTE, ge=64 * MEGABYTE, description="that one analysis may allocate, its programs each"
    )
    workers: int = Field(default_factory=count_default_workers, ge=1, le=256)
    queue: int = Field(default=64, ge=0, description="analyses that wait for a worker; more are told to come back")
    shutdown_seconds: float = Field(default=30.0, gt=0, description="in which what was accepted may be finished")

    @field_validator("allowed_hosts")
    @classmethod
    def _names(cls, hosts: tuple[str, ...]) -> tuple[str, ...]:
        for host in hosts:
            if "/" in host or (":" in host and not is_address(host)):
                raise ValueError(f"{host} is no name alone: leave out scheme and port")
        return hosts

    @field_validator("token")
    @classmethod
    def _long_enough(cls, token: SecretStr | None) -> SecretStr | None:
        if token is not None and len(token.get_secret_value()) < SHORTEST_TOKEN:
            raise ValueError(f"has fewer than {SHORTEST_TOKEN} characters")
        if token is not None and not (token.get_secret_value().isascii() and token.get_secret_value().isprintable()):
            raise ValueError("has characters that no header can hold")
        return token

    @model_validator(mode="after")
    def _room_for_one(self) -> ServiceSettings:
        for one, all_of_them in ((self.upload_bytes, self.held_bytes), (self.text_bytes, self.held_text_bytes)):
            if one > all_of_them:
                raise ValueError(f"one body may have {one} bytes, and all together {all_of_them}")
        return self

    @model_validator(mode="after")
    def _not_open_to_all(self) -> ServiceSettings:
        if self.token is None and not is_loopback(self.host):
            raise ValueError(f"{self.host} is reached by others than this machine, so a token is needed")
        return self
