"""The addresses on which a command that serves a page may listen."""

from __future__ import annotations

import pytest

from host.local_server import check_local
from protos.errors import UsageError


@pytest.mark.parametrize("listen", ["0.0.0.0:80", "[::]:80", "example.org:80", "127.0.0.1", "127.0.0.1:99999", ""])
def test_a_page_is_served_to_this_computer_alone(listen: str) -> None:
    """Any address that others could reach, or that is no address, is refused in three sentences."""
    with pytest.raises(UsageError) as refused:
        check_local(listen, "Nothing was started.")

    assert refused.value.consequence == "Nothing was started."


@pytest.mark.parametrize("listen", ["127.0.0.1:8480", "[::1]:8480", "localhost:8480", "unix:/run/page.sock"])
def test_loopback_and_unix_sockets_are_of_this_computer(listen: str) -> None:
    """These addresses need no permission."""
    check_local(listen, "Nothing was started.")
