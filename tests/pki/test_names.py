"""Names are spelt in one way only."""

from __future__ import annotations

import pytest

from pki.names import Address, federation_name, site_name, site_uri
from protos.errors import ConfigurationError


@pytest.mark.parametrize("text", ["a", "st-mary", "x1-", "a" * 40])
def test_lowercase_names_are_names(text: str) -> None:
    """Letters, digits and hyphens after a first letter make a name."""
    assert site_name(text) == federation_name(text) == text


@pytest.mark.parametrize("text", ["", "A", "1a", "-a", "a" * 41, "a/b", "a b", "a\n", "ä", "a\u0660", "a.b", "a_b"])
def test_everything_else_is_refused(text: str) -> None:
    """No capital, no sign of a URI, no line end and no foreign digit gets into a name."""
    with pytest.raises(ConfigurationError):
        site_name(text)


def test_a_site_has_one_uri() -> None:
    """The URI is made of the federation and the site and nothing else."""
    assert site_uri("heart", "st-mary") == "spiffe://heart/site/st-mary"


@pytest.mark.parametrize("text", ["coordinator.example.org:8443", "192.0.2.7:1", "[2001:db8::7]:65535"])
def test_an_address_is_written_as_it_was_read(text: str) -> None:
    """Reading and writing an address gives the same text."""
    assert str(Address.parse(text)) == text


@pytest.mark.parametrize(
    "text", ["", "host", "host:", ":1", "host:0", "host:65536", "a b:1", "2001:db8::7:1", "h_st:1", "h\n:1", "h:1\n"]
)
def test_what_is_no_address_is_refused(text: str) -> None:
    """A host and a port from 1 to 65535 are both needed."""
    with pytest.raises(ConfigurationError):
        Address.parse(text)
