"""Secrets have mode 0600, appear whole, and are not used when others could read them."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from host import secret_files
from protos.errors import ConfigurationError


def test_a_secret_is_private_whatever_the_umask(tmp_path: Path) -> None:
    """A secret file has mode 0600, a public one 0644, under every umask."""
    for umask in (0, 0o022, 0o077):
        previous = os.umask(umask)
        try:
            secret_files.write_secret(tmp_path / "secret", b"s", replace=True)
            secret_files.write_public(tmp_path / "public", b"p")
        finally:
            os.umask(previous)

        assert stat.S_IMODE((tmp_path / "secret").stat().st_mode) == 0o600
        assert stat.S_IMODE((tmp_path / "public").stat().st_mode) == 0o644
    assert sorted(path.name for path in tmp_path.iterdir()) == ["public", "secret"]


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660, 0o644, 0o601])
def test_an_open_secret_is_not_used(tmp_path: Path, mode: int) -> None:
    """A secret that the group or everybody may use is refused with the command that corrects it."""
    path = tmp_path / "key"
    secret_files.write_secret(path, b"s", replace=False)
    path.chmod(mode)

    with pytest.raises(ConfigurationError, match="chmod 600"):
        secret_files.read_secret(path)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can own a file of root")
def test_a_credential_of_the_service_manager_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """LoadCredential= gives files root:root 0440 in a folder that only the service sees."""
    given, elsewhere = tmp_path / "given" / "key", tmp_path / "elsewhere" / "key"
    for path in (given, elsewhere):
        path.parent.mkdir()
        path.write_bytes(b"s")
        path.chmod(0o440)
    monkeypatch.setenv("CREDENTIALS_DIRECTORY", str(given.parent))

    assert secret_files.read_secret(given) == b"s"
    with pytest.raises(ConfigurationError):
        secret_files.read_secret(elsewhere)
    given.chmod(0o444)
    with pytest.raises(ConfigurationError):
        secret_files.read_secret(given)


def test_a_secret_is_never_overwritten_unasked(tmp_path: Path) -> None:
    """Without `replace` the first content stays, and nothing else is left behind."""
    path = tmp_path / "key"
    secret_files.write_secret(path, b"first", replace=False)

    with pytest.raises(ConfigurationError, match="exists already"):
        secret_files.write_secret(path, b"second", replace=False)

    assert secret_files.read_secret(path) == b"first"
    assert list(tmp_path.iterdir()) == [path]


def test_missing_huge_and_strange_files_are_explained(tmp_path: Path) -> None:
    """A missing file, a directory, a file of 300 KiB and a shared directory are each an operator's error."""
    (tmp_path / "huge").write_bytes(bytes(300 * 1024))
    (tmp_path / "shared").mkdir()
    (tmp_path / "shared").chmod(0o777)

    for path in (tmp_path / "missing", tmp_path, tmp_path / "huge", tmp_path / "huge" / "below"):
        with pytest.raises(ConfigurationError):
            secret_files.read_public(path)
    with pytest.raises(ConfigurationError, match="chmod go-w"):
        secret_files.make_private_directory(tmp_path / "shared")
    secret_files.make_private_directory(tmp_path / "a" / "b")
    assert stat.S_IMODE((tmp_path / "a" / "b").stat().st_mode) == 0o700
