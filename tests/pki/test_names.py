"""Names are spelt in one way only."""

from __future__ import annotations

import pytest

from pki.names import Address, site_name
from protos.errors import ConfigurationError


@pytest.mark.parametrize("text", ["", "A", "1a", "-a", "a" * 41, "a/b", "a b", "a\n", "ä", "a\u0660", "a.b", "a_b"])
def test_everything_else_is_refused(text: str) -> None:
    """No capital, no sign of a URI, no line end and no foreign digit gets into a name."""
    with pytest.raises(ConfigurationError):
        site_name(text)


@pytest.mark.parametrize(
    "text", ["", "host", "host:", ":1", "host:0", "host:65536", "a b:1", "2001:db8::7:1", "h_st:1", "h\n:1", "h:1\n"]
)
def test_what_is_no_address_is_refused(text: str) -> None:
    """A host and a port from 1 to 65535 are both needed."""
    with pytest.raises(ConfigurationError):
        Address.parse(text)
