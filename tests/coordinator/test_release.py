"""The end of a study as people type it: sites sign, the coordinator releases, and data are withdrawn."""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from safetensors.numpy import load_file, save_file

import coordinator.coordinator_cli
import site_agent.site_cli
from audit.own_log import AuditLog
from protos.plan.manifest import manifest_of
from protos.plan.plan import Plan
from tests.pki.whole_site import SiteKeys
from tests.rehearsal.federation import Office
from tests.rehearsal.study import SITES, plan_with

Type = Callable[..., tuple[int, str]]


@pytest.fixture
def type_words(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Type:
    """A terminal: program and words; exit status and all that was printed."""

    def typed(program: str, *words: object) -> tuple[int, str]:
        monkeypatch.setattr(sys, "argv", [program, *map(str, words)])
        with pytest.raises(SystemExit) as ended:
            (site_agent.site_cli if program == "site-agent" else coordinator.coordinator_cli).main()
        out, err = capsys.readouterr()
        assert "Traceback" not in out + err
        return (ended.value.code if isinstance(ended.value.code, int) else 0), out + err

    return typed


class End:
    """Three sites and a coordinator after a run."""

    def __init__(self, folder: Path, authority: Path) -> None:
        self.folder, self.digest = folder, ""
        self.plan = self._sites(folder)
        self.run = self.plan.run_name
        kept = folder / "state" / "runs" / self.run
        kept.mkdir(parents=True)
        (kept / "plan.json").write_bytes(self.plan.canonical)
        save_file(self.tensors(self.plan), kept / "parameters.safetensors")
        self.record(is_complete=True)
        (folder / "coordinator.yaml").write_text(
            yaml.safe_dump({"listen": "localhost:1234", "authority": str(authority), "state": "state"})
        )

    @staticmethod
    def tensors(plan: Plan) -> dict[str, np.ndarray[Any, np.dtype[np.float32]]]:
        """The result of the run: every tensor of the plan, in the manifest's order."""
        return {one.name: np.full(one.shape, place, np.float32) for place, one in enumerate(manifest_of(plan).tensors)}

    def record(self, **facts: Any) -> None:
        """Write the run's record."""
        content = {"shared_parameters_sha256": self.digest} | facts
        (self.folder / "state" / "runs" / self.run / "record.json").write_text(json.dumps(content))

    def config(self, site: str) -> Path:
        """A site's configuration."""
        return self.folder / site / "hospital.yaml"

    def _sites(self, folder: Path) -> Plan:
        identities = {}
        for site in SITES:
            state = folder / site / "state"
            state.mkdir(parents=True)
            identities[site] = SiteKeys.create(state / "gate").identity_fingerprint()
            policy = {
                "methods": ["fedavg"], "secure_aggregation": "required", "smallest_sites": 3, "largest_rounds": 9,
                "largest_megabytes": 1.0, "largest_clipping_range": 8.0,
            }  # fmt: skip
            data = {"table": "t", "contract": "c", "split": {"seed": 0}}
            content = {"site": site, "state": "state", "policy": policy, "data": data}
            (folder / site / "hospital.yaml").write_text(yaml.safe_dump(content))
        plan = plan_with(identities)
        self.digest = hashlib.sha256(b"".join(one.tobytes() for one in self.tensors(plan).values())).hexdigest()
        for site in SITES:
            log = AuditLog(
                folder / site / "state" / "gate" / "audit.log", site=site, now=lambda: datetime(2026, 3, 1, tzinfo=UTC)
            )
            for number in range(3):
                log.write("contribution_released", run=plan.run_name, round=number, attempt=0, masked=True, bytes=48)
            log.write("run_finished", run=plan.run_name, rounds=3, parameters_sha256=self.digest)
            log.close()
        return plan


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The coordinator's authority, whose identity key signs its log."""
    return Office.found(tmp_path_factory.mktemp("heart")).authority.directory


@pytest.fixture
def end(tmp_path: Path, authority: Path) -> End:
    """A study that is over."""
    return End(tmp_path, authority)


def signed(end: End, type_words: Type, to: str = "Dr Lee, for validation") -> list[object]:
    """Let every site sign; the coordinator's words for their files."""
    words: list[object] = []
    for site in SITES:
        file = end.folder / f"{site}.release"
        command = ["release", "approve", "--config", end.config(site), "--run", end.run, "--by", "A. Jones"]
        assert type_words("site-agent", *command, "--to", to, "--output", file)[0] == 0
        words += ["--approval", file]
    return words


def test_what_every_site_has_signed_is_released(end: End, type_words: Type) -> None:
    """The recipient's folder holds the parameters and every signature; the sites' logs and the run's folder know."""
    files = signed(end, type_words)
    command = ["release", "--config", end.folder / "coordinator.yaml", "--run", end.run, "--output", end.folder / "out"]

    status, said = type_words("coordinator", *command, *files)

    assert (status, "Dr Lee, for validation" in said) == (0, True)
    released_tensors = load_file(end.folder / "out" / "parameters.safetensors")
    assert all(np.array_equal(released_tensors[name], values) for name, values in end.tensors(end.plan).items())
    (kept,) = (line for line in (end.folder / "state" / "audit.log").read_text().splitlines() if "released" in line)
    assert all(fact in kept for fact in ("parameters_released", end.run, end.digest, "Dr Lee, for validation"))
    released = json.loads((end.folder / "out" / "release.json").read_text())
    assert [approval["site"] for approval in released["approvals"]] == list(SITES)
    assert (end.folder / "state" / "runs" / end.run / "releases.jsonl").read_text().count("\n") == 1
    assert "release_approved" in (end.folder / "a" / "state" / "gate" / "audit.log").read_text()


@pytest.mark.parametrize(("left_out", "complete", "status"), [(1, True, 77), (0, False, 78)])
def test_without_a_site_or_an_end_nobody_gets_anything(
    end: End, type_words: Type, left_out: int, complete: bool, status: int
) -> None:
    """No folder is made where a signature is missing or the run was not made to its end."""
    files = signed(end, type_words)[: 6 - 2 * left_out]
    end.record(is_complete=complete)
    command = ["release", "--config", end.folder / "coordinator.yaml", "--run", end.run, "--output", end.folder / "out"]

    assert type_words("coordinator", *command, *files)[0] == status
    assert not (end.folder / "out").exists()


@pytest.mark.parametrize("run", ["none-v1-abc", "../../etc"])
def test_a_run_that_is_not_there_is_told(end: End, type_words: Type, run: str) -> None:
    """A name that is no finished run of this coordinator, or of this site, releases nothing."""
    files = signed(end, type_words)
    out = end.folder / "out"
    command = ["release", "--config", end.folder / "coordinator.yaml", "--run", run, "--output", out]
    assert type_words("coordinator", *command, *files)[0] == 2
    words = ["release", "approve", "--config", end.config("a"), "--run", run, "--by", "A", "--to", "B", "--output", out]
    assert type_words("site-agent", *words)[0] == 2


def test_withdrawn_data_is_on_record_and_nothing_is_promised(end: End, type_words: Type) -> None:
    """The command says what left and that no sum can be parted again; the log has who and why."""
    words = ["release", "withdraw-data", "--config", end.config("b"), "--by", "A. Jones", "--reason", "no consent"]

    status, said = type_words("site-agent", *words, "--run", end.run)

    assert status == 0
    assert f"3 rounds of {end.run}" in said
    assert "only as a part of sums" in said
    assert "cannot be undone: nobody can divide a sum again" in said
    log = (end.folder / "b" / "state" / "gate" / "audit.log").read_text()
    assert '"data_withdrawn"' in log
    assert "no consent" in log
    assert type_words("site-agent", *words, "--run", "other")[0] == 2


@pytest.mark.parametrize("other", ["number", "name", "shape", "noise"])
def test_other_parameters_than_those_signed_for_are_not_released(end: End, type_words: Type, other: str) -> None:
    """A file that was changed after the run, in one number, a name or a shape, is refused, and no folder is made."""
    files, file = signed(end, type_words), end.folder / "state" / "runs" / end.run / "parameters.safetensors"
    tensors = end.tensors(end.plan)
    first = next(iter(tensors))
    if other == "number":
        tensors[first].flat[0] += 1
    elif other == "name":
        tensors["added"] = np.zeros(0, np.float32)
    else:
        tensors[first] = tensors[first].reshape(-1, 1)
    save_file(tensors, file)
    if other == "noise":
        file.write_bytes(b"noise")
    command = ["release", "--config", end.folder / "coordinator.yaml", "--run", end.run, "--output", end.folder / "out"]

    status, said = type_words("coordinator", *command, *files)

    assert (status, "sites signed" in said) == (78, True)
    assert not (end.folder / "out").exists()
    assert not (end.folder / "state" / "audit.log").exists()


def test_nothing_is_handed_out_without_a_record(end: End, type_words: Type) -> None:
    """If the log cannot be written, the recipient's folder stays empty."""
    files = signed(end, type_words)
    (end.folder / "state" / "audit.log").mkdir()
    command = ["release", "--config", end.folder / "coordinator.yaml", "--run", end.run, "--output", end.folder / "out"]

    assert type_words("coordinator", *command, *files)[0] != 0
    assert list((end.folder / "out").glob("*")) == []
