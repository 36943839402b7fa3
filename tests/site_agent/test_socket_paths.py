"""The paths of a site's sockets, which the kernel limits to 107 bytes."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from protos.errors import ConfigurationError
from site_agent.hospital import read_hospital

EXAMPLE = Path(__file__).parents[2] / "deploy" / "examples" / "hospital.yaml"


def configuration(folder: Path, key: str, path: str) -> Path:
    """A hospital's file with this path of a socket."""
    file = folder / "hospital.yaml"
    file.write_text(yaml.safe_dump(yaml.safe_load(EXAMPLE.read_text()) | {key: path}))
    return file


@pytest.mark.parametrize("key", ["gate_socket", "trainer_socket"])
def test_a_path_that_no_socket_can_have_is_named_with_both_lengths(tmp_path: Path, key: str) -> None:
    """The longest path is taken, one byte more is refused; a letter of two bytes counts as two."""
    room = 107 - len(str(tmp_path)) - 1

    assert getattr(read_hospital(configuration(tmp_path, key, "s" * room)), key).endswith("sss")
    for path in ("s" * (room + 1), "s" * (room - 1) + "ø"):
        with pytest.raises(ConfigurationError, match=rf"setting {key} has 108 bytes: .* at most 107"):
            read_hospital(configuration(tmp_path, key, path))
