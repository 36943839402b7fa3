"""A sealed key opens only with its passphrase."""

from __future__ import annotations

import base64
import hashlib
import json

import pytest
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from pki import sealed_key
from pki.sealed_key import new_passphrase, seal, unseal
from protos.errors import ConfigurationError, RefusedError

COST = sealed_key._COST  # as programs use it: when this module is read, no fixture has lowered it yet


def test_a_guess_costs_what_the_container_names(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python's own scrypt with n = 131072, r = 8 and p = 1 gives the key that opens a container."""
    monkeypatch.setattr(sealed_key, "_COST", COST)
    fields = json.loads(seal(b"very secret", "correct horse battery"))
    salt, nonce, sealed = (base64.b64decode(fields[name]) for name in ("salt", "nonce", "sealed"))

    key = hashlib.scrypt(b"correct horse battery", salt=salt, n=131072, r=8, p=1, dklen=32, maxmem=2**28)

    assert AESGCM(key).decrypt(nonce, sealed, f"{fields['format']}\n{fields['function']}".encode()) == b"very secret"
    assert "n=131072 r=8 p=1," in fields["function"]


def test_only_the_passphrase_opens_the_key() -> None:
    """The right passphrase gives the secret back; another is refused; the file does not show the secret."""
    sealed = seal(b"very secret", "correct horse battery")

    assert unseal(sealed, "correct horse battery") == b"very secret"
    assert b"very secret" not in sealed
    with pytest.raises(RefusedError):
        unseal(sealed, "correct horse batterx")


@pytest.mark.parametrize("name", ["salt", "nonce", "sealed", "function", "format"])
def test_a_changed_container_stays_closed(name: str) -> None:
    """A change in any field is refused, and the cost cannot be raised by the file."""
    fields = json.loads(seal(b"very secret", "correct horse battery"))
    fields[name] = ("B" if fields[name][0] == "A" else "A") + fields[name][1:]

    with pytest.raises((RefusedError, ConfigurationError)):
        unseal(json.dumps(fields).encode(), "correct horse battery")


def test_short_passphrases_are_refused_and_new_ones_are_long() -> None:
    """Eleven characters are too few; a made passphrase has 26 random ones."""
    with pytest.raises(ConfigurationError):
        seal(b"s", "elevenchars")

    assert len(new_passphrase().replace("-", "")) == 26
