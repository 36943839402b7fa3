"""Defines names of federations and sites, addresses, and the URIs in certificates.

A name is 1 to 40 lowercase letters, digits and hyphens, and begins with a letter. So it is the same in a URI, in a file
name, in a log and over the telephone. A URI is compared as a whole and never normalised.
"""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass
from typing import NewType

from protos.errors import ConfigurationError

SiteName = NewType("SiteName", str)
FederationName = NewType("FederationName", str)

_NAME = re.compile(r"[a-z][a-z0-9-]{0,39}")
_HOST = re.compile(r"(?=.{1,253}\Z)[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?(\.[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?)*")
_ADDRESS = re.compile(r"(\[(?P<six>[0-9a-f:.]+)\]|(?P<host>[^:\[\]]+)):(?P<port>[0-9]{1,5})")


def site_name(text: str) -> SiteName:
    """Convert a text to a site's name. Raises ConfigurationError if the text is not a permitted name."""
    return SiteName(_checked(text, "site"))


def federation_name(text: str) -> FederationName:
    """Convert a text to a federation's name. Raises ConfigurationError if the text is not a permitted name."""
    return FederationName(_checked(text, "federation"))


def is_name(text: str) -> bool:
    """Return whether a text is a permitted name of a site or a federation."""
    return _NAME.fullmatch(text) is not None


def site_uri(federation: str, site: str) -> str:
    """Return the only URI in the certificate of a site."""
    return f"spiffe://{federation}/site/{site}"


def coordinator_uri(federation: str) -> str:
    """Return the only URI in the certificate of the coordinator."""
    return f"spiffe://{federation}/coordinator"


def host_name(text: str) -> str:
    """Convert a host to its form in certificates: a DNS name in lowercase or an IP address in its short form."""
    lowered = text.lower()
    try:
        return str(ipaddress.ip_address(lowered))
    except ValueError:
        if _HOST.fullmatch(lowered) is None:
            raise ConfigurationError(
                what=f"{_shown(text)} is neither a DNS name nor an IP address.",
                consequence="Nothing was written and nothing was sent.",
                remedy="Give a host such as federation.example.org or 192.0.2.7.",
            ) from None
        return lowered


@dataclass(frozen=True, slots=True)
class Address:
    """The address of a program: a DNS name or an IP address, and a TCP port from 1 to 65535."""

    host: str
    port: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "host", host_name(self.host))
        if not 0 < self.port < 65536:
            raise ConfigurationError(
                what=f"{self.port} is not a TCP port.",
                consequence="Nothing was written and nothing was sent.",
                remedy="Give an address such as federation.example.org:8443, with a port from 1 to 65535.",
            )

    @classmethod
    def parse(cls, text: str) -> Address:
        """Parse `host:port`. An IPv6 address needs square brackets."""
        if (found := _ADDRESS.fullmatch(text.lower())) is None:
            raise ConfigurationError(
                what=f"{_shown(text)} is not an address of the form HOST:PORT.",
                consequence="Nothing was written and nothing was sent.",
                remedy="Give an address such as federation.example.org:8443 or [2001:db8::7]:8443.",
            )
        return cls(found["six"] or found["host"], int(found["port"]))

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def _checked(text: str, kind: str) -> str:
    if not is_name(text):
        raise ConfigurationError(
            what=f"{_shown(text)} cannot be the name of a {kind}.",
            consequence="Nothing was written and nothing was sent.",
            remedy="Use 1 to 40 lowercase letters, digits and hyphens, beginning with a letter, such as st-mary-2.",
        )
    return text


def _shown(text: str) -> str:
    # The received text can be long, or can have control characters that change a terminal's display.
    return ascii(text if len(text) <= 60 else text[:57] + "...")
