"""The file from which a plan's network starts: only the file that the plan names is accepted."""

from __future__ import annotations

import os
import resource
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from host.starting_files import starting_values
from protos.errors import ConfigurationError
from protos.plan.plan import Plan
from tests.host.starting import random_values, write_starting_file
from tests.protos.privacy.private_plans import private_network_plan
from tests.rehearsal.study import made_up_identities, plan_with

SHAPES = {"first": (3,), "second": (7,)}


def plan_of(digest: str, layers: list[str] | None = None) -> Plan:
    """A plan of two tensors with ten numbers."""
    return plan_with(
        made_up_identities(), changes={"start": {"name": "file", "seed": 0, "sha256": digest, "layers": layers}}
    )


def bare(dtype: str, shape: list[int], content: bytes, length: int | None = None) -> bytes:
    """A safetensors file by hand; its header may claim another length."""
    header = f'{{"first":{{"dtype":"{dtype}","shape":{shape},"data_offsets":[0,{len(content)}]}}}}'.encode()
    return (len(header) if length is None else length).to_bytes(8, "little") + header + content


@pytest.mark.parametrize("layers", [None, ["second"]])
def test_the_file_of_the_plan_is_read(tmp_path: Path, layers: list[str] | None) -> None:
    """To the bit, all layers or those that the plan names; a plan without a file needs none."""
    values = random_values({name: SHAPES[name] for name in layers or SHAPES})
    digest = write_starting_file(tmp_path, values)

    found = starting_values(tmp_path, plan_of(digest, layers))

    assert {name: array.tobytes() for name, array in found.items()} == {n: a.tobytes() for n, a in values.items()}
    assert starting_values(tmp_path / "none", plan_with(made_up_identities())) == {}


WRONG: list[tuple[dict[str, Any] | bytes, str]] = [
    ({"first": np.zeros(3, np.float32)}, "other tensors than the plan"),
    (random_values(SHAPES | {"third": (1,)}), "other tensors than the plan"),
    (random_values(SHAPES | {"second": (8,)}), "other tensors than the plan"),
    ({name: np.zeros(shape) for name, shape in SHAPES.items()}, "other tensors than the plan"),
    (random_values(SHAPES) | {"second": np.full(7, np.nan, np.float32)}, "values in second that are not finite"),
    (random_values(SHAPES) | {"second": np.full(7, -np.inf, np.float32)}, "values in second that are not finite"),
    (random_values(SHAPES | {"third": (1 << 18,)}), r"has 1,048,[0-9]+ bytes, and the plan's tensors allow 1,048,616"),
    (b"no values", "not a safetensors file"),
    (b"", "not a safetensors file"),
    (bare("BF16", [1], bytes(2)), "not a safetensors file"),
    (bare("F32", [3], bytes(12), length=1 << 62), "not a safetensors file"),
    (bare("F32", [1 << 40], bytes(12)), "not a safetensors file"),
]


@pytest.mark.parametrize(("content", "words"), WRONG)
def test_a_file_that_does_not_fit_is_refused(tmp_path: Path, content: dict[str, Any] | bytes, words: str) -> None:
    """Also if the plan names this very file, in three sentences."""
    digest = write_starting_file(tmp_path, content)

    with pytest.raises(ConfigurationError, match=words) as caught:
        starting_values(tmp_path, plan_of(digest))

    assert caught.value.consequence == "The run did not start, and nothing was sent."
    assert caught.value.remedy


def test_another_file_under_the_digest_is_refused(tmp_path: Path) -> None:
    """The error has both digests. A missing file, a pipe, and a file of terabytes are refused too. The file of
    terabytes takes no memory."""
    digest = write_starting_file(tmp_path, random_values(SHAPES))
    path, plan = tmp_path / f"{digest}.safetensors", plan_of(digest)

    path.write_bytes(b"another")
    with pytest.raises(ConfigurationError, match=rf"has the SHA-256 [0-9a-f]{{64}}\. The plan names .* {digest}"):
        starting_values(tmp_path, plan)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    os.truncate(path, 1 << 40)
    with pytest.raises(ConfigurationError, match="1,099,511,627,776 bytes"):
        starting_values(tmp_path, plan)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 50_000  # KiB
    path.unlink()
    with pytest.raises(ConfigurationError, match="cannot be read: No such file"):
        starting_values(tmp_path, plan)
    os.mkfifo(path)
    with pytest.raises(ConfigurationError, match="not a regular file"):
        starting_values(tmp_path, plan)


def test_no_file_starts_a_network_whose_noise_depends_on_it() -> None:
    """The noise is chosen for networks that start from the seed."""
    file = {"name": "file", "seed": 3, "sha256": "0" * 64}
    with pytest.raises(ValueError, match="all sites start from the same values"):
        private_network_plan(start=file)
