"""Settings of a service: address, access, and limits of one request."""

from __future__ import annotations

import ipaddress
import os

from pydantic import BaseModel, ConfigDict, Field, SecretStr, field_validator, model_validator

SHORTEST_TOKEN = 16
"""Characters of a token. A shorter one could be guessed by trying."""
MEGABYTE = 1 << 20
TOKEN_VARIABLE = "FRX_SERVE_TOKEN"
"""Environment variable with the token, if no file has it."""


def is_loopback(host: str) -> bool:
    """Return True if only this machine can reach `host`."""
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
    """Return the number of cores, at most four, since an analysis has one thread."""
    return max(1, min(4, os.cpu_count() or 1))


class ServiceSettings(BaseModel):
    """Settings, validated together: without a token, only this machine is served."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    host: str = "127.0.0.1"
    port: int = Field(default=8787, ge=0, le=65535, description="0: any free port")
    token: SecretStr | None = None
    allowed_hosts: tuple[str, ...] = Field(default=(), description="names of the service besides `host`")
    upload_bytes: int = Field(default=512 * MEGABYTE, ge=1, description="of a body with files")
    text_bytes: int = Field(default=16 * MEGABYTE, ge=1, description="of a body that is JSON")
    held_bytes: int = Field(default=4096 * MEGABYTE, ge=1, description="of all bodies with files together")
    held_text_bytes: int = Field(default=256 * MEGABYTE, ge=1, description="of all JSON bodies together, in memory")
    result_bytes: int = Field(default=64 * MEGABYTE, ge=1, description="of an answer")
    body_seconds: float = Field(default=300.0, gt=0, description="until a body must have arrived")
    idle_seconds: float = Field(default=30.0, gt=0, description="between two parts of a body")
    analysis_seconds: float = Field(default=60.0, gt=0, description="that one analysis may take")
    analysis_bytes: int = Field(
        default=2048 * MEGABYTE, ge=64 * MEGABYTE, description="that an analysis or a program it runs may allocate"
    )
    workers: int = Field(default_factory=count_default_workers, ge=1, le=256)
    queue: int = Field(default=64, ge=0, description="analyses that may wait for a worker; further ones get a 503")
    shutdown_seconds: float = Field(default=30.0, gt=0, description="that accepted requests have to finish")

    @field_validator("allowed_hosts")
    @classmethod
    def _names(cls, hosts: tuple[str, ...]) -> tuple[str, ...]:
        for host in hosts:
            if "/" in host or (":" in host and not is_address(host)):
                raise ValueError(f"{host} is not a plain host name: leave out scheme and port")
        return hosts

    @field_validator("token")
    @classmethod
    def _long_enough(cls, token: SecretStr | None) -> SecretStr | None:
        if token is not None and len(token.get_secret_value()) < SHORTEST_TOKEN:
            raise ValueError(f"has fewer than {SHORTEST_TOKEN} characters")
        if token is not None and not (token.get_secret_value().isascii() and token.get_secret_value().isprintable()):
            raise ValueError("has characters that are not allowed in a header")
        return token

    @model_validator(mode="after")
    def _room_for_one(self) -> ServiceSettings:
        for one, all_of_them in ((self.upload_bytes, self.held_bytes), (self.text_bytes, self.held_text_bytes)):
            if one > all_of_them:
                raise ValueError(f"one body may have {one} bytes, but all together only {all_of_them}")
        return self

    @model_validator(mode="after")
    def _not_open_to_all(self) -> ServiceSettings:
        if self.token is None and not is_loopback(self.host):
            raise ValueError(f"{self.host} can be reached from other machines, so a token is needed")
        return self
