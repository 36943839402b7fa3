"""Defines the text types that the configurations of both programs use: addresses, and paths without control characters.

The types do not check that an address or path exists.
"""

from __future__ import annotations

from typing import Annotated, TypeAlias

from pydantic import AfterValidator, StringConstraints


def _with_a_real_port(address: str) -> str:
    if not 0 < int(address.rpartition(":")[2]) < 1 << 16:
        raise ValueError("a port lies between 1 and 65535")
    return address


Address: TypeAlias = Annotated[
    str,
    StringConstraints(pattern=r"^(\[[0-9a-fA-F:.]+\]|[A-Za-z0-9._-]+):[0-9]{1,5}$", max_length=260),
    AfterValidator(_with_a_real_port),
]
PathText: TypeAlias = Annotated[str, StringConstraints(pattern=r"^[^\x00-\x1f\x7f]+$", max_length=4000)]


def _of_this_computer(address: str) -> str:
    if not address.startswith("unix:"):
        _with_a_real_port(address)
    return address


# An address for programs of this computer only: loopback, or a Unix socket as unix:/path.
LocalAddress: TypeAlias = Annotated[
    str,
    StringConstraints(
        pattern=r"^((127\.0\.0\.1|\[::1\]|localhost):[0-9]{1,5}|unix:/[^\x00-\x1f\x7f]+)$", max_length=108
    ),
    AfterValidator(_of_this_computer),
]
