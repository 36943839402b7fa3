"""`review`, `approve` and `withdraw` as a person types them."""

from __future__ import annotations

import io
import json
import sqlite3
import sys
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import structlog
import yaml

from host.audit_log import AuditLog
from host.record_store import StoreDamaged
from protos.errors import UnavailableError
from protos.plan.manifest import manifest_of
from protos.plan.plan import Plan
from site_agent.approvals import find_approval, keep_plan, why_not
from site_agent.desk.examination.examine import examined
from site_agent.gate.privacy_ledger import PrivacyLedger
from site_agent.hospital import read_hospital
from site_agent.site_cli import main
from site_agent.trainer.data.run_table import TableCheck, keep_check
from tests.entry_points import Terminal
from tests.logged import lines_of
from tests.pki.whole_site import SiteKeys
from tests.plan_changes import WITHOUT_MASKS, changed
from tests.protos.examples import table_one_of
from tests.protos.privacy.private_plans import private_network_plan
from tests.rehearsal.study import made_up_identities, plan_document, plan_with

TARGET = {"name": "died", "role": "target", "task": "binary", "positive": ["1"]}


class Site(Terminal):
    """One hospital's folder, and its terminal."""

    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__("site-agent", main, capsys, monkeypatch)
        monkeypatch.setattr("site_agent.commands.approval_commands.give_up_network", lambda: True)
        self.folder = folder
        (folder / "state").mkdir()
        keys = SiteKeys.create(folder / "state" / "gate")
        self.identities = made_up_identities() | {"a": keys.identity_fingerprint()}
        self.allow()

    def allow(self, **rules: Any) -> None:
        """Write hospital.yaml with these rules."""
        data = {"table": "t.csv", "contract": "c.yaml", "split": {"seed": 0}}
        content = {"site": "a", "state": "state", "policy": WITHOUT_MASKS | rules, "data": data}
        (self.folder / "hospital.yaml").write_text(yaml.safe_dump(content))

    def check(self) -> None:
        """Record that a person accepts the table as it is."""
        digest = examined(read_hospital(self.folder / "hospital.yaml")).digest
        keep_check(self.folder / "state", TableCheck(digest=digest, warnings=(), by="A. Jones", at="2026-11-30"))

    def plan(self, **keys: Any) -> Plan:
        """Write plan.yaml."""
        document = changed(plan_document(self.identities), keys)
        (self.folder / "plan.yaml").write_text(yaml.safe_dump(document))
        return plan_with(self.identities, changes=document)

    def __call__(self, *words: object, names_plan: bool = True) -> int:
        """Type a command about the plan; its exit status."""
        plan = ["--plan", str(self.folder / "plan.yaml")] if names_plan else []
        return super().__call__(words[0], "--config", self.folder / "hospital.yaml", *plan, *words[1:])

    def events(self) -> list[dict[str, Any]]:
        """What the audit log says."""
        lines = lines_of(self.folder / "state" / "gate" / "gate.sqlite")
        return [json.loads(line)["facts"] for line in lines]

    def why_not(self, plan: Plan, approvers: int = 1) -> str | None:
        """Why the plan may not train."""
        found = find_approval(self.folder / "state", plan)
        return why_not(found, approvers=approvers, now=datetime.now(UTC))


@pytest.fixture
def site(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    """A hospital with an identity key."""
    yield Site(tmp_path, capsys, monkeypatch)
    structlog.reset_defaults()


def test_what_the_policy_refuses_cannot_be_approved(site: Site) -> None:
    """Review and approve give every reason, both end with 77, it is recorded, and no approval is written."""
    plan = site.plan()
    site.allow(largest_rounds=2, largest_clipping_range=0.5, methods=["local"], largest_megabytes=0.00001)

    assert site("review") == 77
    assert "The policy refuses this plan: the plan has 3 rounds, and the policy allows 2." in site.out
    assert "The policy refuses this plan: the plan's clipping range is 8, and the policy allows 0.5." in site.out
    assert "The policy refuses this plan: the policy does not allow the method fedavg, it allows local." in site.out
    assert site("approve", "--by", "A. Jones", "--yes") == 77
    assert "another policy in hospital.yaml" in site.err
    assert "the policy allows 1e-05 MB; the plan's clipping range is 8, and the policy allows 0.5" in site.err
    assert [(facts["event"], facts["by"]) for facts in site.events()] == [("approval_refused", "A. Jones")]
    assert find_approval(site.folder / "state", plan) is None


def test_the_review_refuses_what_the_spent_budget_refuses(site: Site) -> None:
    """Review and approve ask what the gate asks: an earlier study has spent what this one needs."""
    sites = [{"name": name, "identity": key} for name, key in sorted(site.identities.items())]
    plan = private_network_plan(sites=sites)
    (site.folder / "plan.yaml").write_text(yaml.safe_dump(json.loads(plan.canonical)))
    budget = {"largest_epsilon_per_study": 1.2, "largest_epsilon_per_year": 1.2, "delta": 1e-5}
    site.allow(secure_aggregation="required", privacy=budget)
    assert site("review") == 0
    assert "did not check" not in site.out
    log = AuditLog(site.folder / "state" / "gate" / "gate.sqlite", site="a", now=lambda: datetime.now(UTC))
    PrivacyLedger(log).pay(
        private_network_plan(sites=sites, study="earlier"), bytes(32), [0] * len(manifest_of(plan).scalars)
    )
    log.close()

    assert site("review") == 77
    assert "The policy refuses this plan: epsilon of all studies of one year" in site.out
    assert site("approve", "--by", "A. Jones", "--yes") == 77
    (site.folder / "state" / "gate" / "gate.sqlite").write_bytes(b"no log")
    assert site("review") == 0
    assert "how much epsilon is spent" in site.out


@pytest.mark.parametrize("unit", ["years", "days"])
def test_a_plan_that_does_not_fit_the_contract_cannot_be_approved(site: Site, unit: str) -> None:
    """Or the run would end for all hospitals before its first round. A script sees it in the review's exit status."""
    age = {"kind": "number", "name": "age", "definition": "Age.", "unit": "years", "low": 0.0, "high": 120.0}
    network = {"architecture": {"name": "dense", "hidden": [2]}, "outputs": 1}
    plan = site.plan(columns=[], concepts=[age | {"typical": 50.0, "spread": 10.0}], **network)
    columns = [{"name": "age", "role": "feature", "type": "numeric", "unit": unit, "concept": "age"}, TARGET]
    (site.folder / "c.yaml").write_text(yaml.safe_dump({"format": {"header": True}, "columns": columns}))

    assert site("review") == (78 if unit == "days" else 0)
    assert ("This site cannot take part now" in site.out) == (unit == "days")
    assert site("approve", "--by", "A. Jones", "--yes") == (78 if unit == "days" else 0)
    assert (find_approval(site.folder / "state", plan) is None) == (unit == "days")


@pytest.mark.parametrize(("age", "status"), [("60", 0), ("sixty", 78)])
def test_a_review_over_a_table_with_errors_ends_as_one_that_does_not_fit(site: Site, age: str, status: int) -> None:
    """It shows all its sections, then says what is wrong, because this hospital cannot take part with this table."""
    site.plan(**table_one_of({"name": "age", "low": 0.0, "high": 120.0}), smallest_cell=10)
    columns = [{"name": "age", "role": "feature", "type": "numeric", "concept": "age"}, TARGET]
    (site.folder / "c.yaml").write_text(yaml.safe_dump({"format": {"header": True}, "columns": columns}))
    (site.folder / "t.csv").write_text(f"age,died\n{age},0\n" + "61,1\n" * 9)
    site.check()

    assert site("review") == status
    assert [one.count("column age: text") for one in (site.out, site.err)] == [status > 0] * 2
    assert "This plan is not permitted here" in site.out


DENSE: dict[str, Any] = {"architecture": {"name": "dense", "hidden": []}, "columns": ["age"], "outputs": 1}
IMAGES = {"name": "convolutional", "image": {"height": 8, "width": 8, "channels": 1}, "blocks": [4], "hidden": [4]}


@pytest.mark.parametrize(
    ("changes", "status"),
    [
        ({}, 0), ({"columns": ["agee"]}, 78), ({"outputs": 3}, 78), ({"columns": [], "architecture": IMAGES}, 78),
        ({"schedule": {"aggregate": "every-epoch", "epochs": 3, "batches_per_epoch": 400}}, 78),
        ({"weighting": {"name": "rows", "fewest_rows": 384, "largest_rows": 1024}}, 77),
        ({"architecture": plan_document({})["architecture"], "columns": [], "outputs": None}, 78),
    ],
)  # fmt: skip
def test_a_plan_that_the_trainer_would_refuse_is_not_approved(site: Site, changes: dict[str, Any], status: int) -> None:
    """Its run would end for all. Among these plans is one whose network is this hospital's own, and it has none."""
    plan = site.plan(**DENSE | changes)
    site.allow(exact_rows="allow")
    columns = [{"name": "age", "role": "feature", "type": "numeric"}, TARGET]
    (site.folder / "c.yaml").write_text(yaml.safe_dump({"format": {"header": True}, "columns": columns}))
    (site.folder / "t.csv").write_text("age,died\n" + "".join(f"{age},{age % 2}\n" for age in range(20, 90)))
    config = site.folder / "hospital.yaml"
    config.write_text(config.read_text().replace("table: t.csv", "table: t.csv\n  unaccepted_warnings: tell"))

    assert [site("review"), site("approve", "--by", "A. Jones", "--yes")] == [status, status]
    assert site.out.startswith("A. Jones approved") == (status == 0)  # no line of a log before it
    assert (find_approval(site.folder / "state", plan) is None) == (status != 0)


@pytest.mark.parametrize(
    ("contract", "status"), [("columns: []\nrnage: 1\n", 78), (None, UnavailableError.exit_status)]
)
def test_a_wrong_or_absent_contract_is_named_and_nothing_is_approved(
    site: Site, contract: str | None, status: int
) -> None:
    """A person would approve a plan without seeing what this hospital contributes."""
    plan = site.plan(**table_one_of({"name": "age", "low": 0.0, "high": 120.0}), smallest_cell=10)
    if contract is not None:
        (site.folder / "c.yaml").write_text(contract)

    for words in (("review",), ("approve", "--by", "A. Jones", "--yes")):
        assert (site(*words), "c.yaml" in site.err) == (status, True)
    assert find_approval(site.folder / "state", plan) is None


def test_a_table_that_was_not_checked_or_has_codes_that_a_plan_lacks_is_not_approved(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run would end for all, or would lose these rows without a word. The contract can say that they are lost."""
    asked = {"name": "sex", "codes": ["F", "M"]}, {"name": "stay", "low": 0, "high": 9}
    plan = site.plan(**table_one_of(*asked), smallest_cell=10)
    sex = {"name": "sex", "role": "feature", "type": "categorical", "codes": ["F", "M", "X", "Y"], "concept": "sex"}
    (site.folder / "t.csv").write_text("sex,died,stay\n" + "F,0,1\nM,1,2\nX,1,3\n" * 20)

    for meanings, is_checked in ((None, False), (None, True), (["F", "M", None, None], False)):
        days = {"name": "stay", "role": "feature", "type": "numeric", "concept": "stay"}
        days |= {} if is_checked or meanings else {"unit": "days"}  # a fault that is named beside the others
        columns = [sex | {"concept_codes": meanings}, days, TARGET]
        (site.folder / "c.yaml").write_text(yaml.safe_dump({"format": {"header": True}, "columns": columns}))
        if is_checked:
            site.check()
        told = "20 of 60 rows have a code of sex that", "No person has checked this table", "stay is in days"
        for words in (("review",), ("approve", "--by", "A. Jones", "--yes")):
            assert site(*words) == 78
            assert [one in site.out for one in told] == [meanings is None, not is_checked, "unit" in days]
        assert find_approval(site.folder / "state", plan) is None

    site.check()
    assert (site("review"), site("approve", "--by", "A. Jones", "--yes")) == (0, 0)
    site.plan(**table_one_of(*asked), smallest_cell=30, version=2)
    terminal = io.StringIO("n\n")
    terminal.isatty = lambda: True  # type: ignore[method-assign]
    monkeypatch.setattr(sys, "stdin", terminal)
    assert site("approve", "--by", "A. Jones") == 2
    assert "void for all" in site.out.partition("Does A. Jones approve")[0].splitlines()[-1]  # not a page above


@pytest.mark.parametrize("allowed", [10, 3])
def test_all_plans_of_a_folder_are_approved_together_or_none(site: Site, allowed: int) -> None:
    """If the policy refuses one of the plans, none of them is approved. A folder without plans is wrong usage."""
    site.allow(largest_rounds=allowed)
    schedules = [{"aggregate": "every-epoch", "epochs": epochs, "batches_per_epoch": 2} for epochs in (3, 4)]
    plans = [site.plan(study=f"study-{n}", schedule=schedule) for n, schedule in enumerate(schedules)]
    (folder := site.folder / "plans").mkdir()
    for plan in plans:
        (folder / f"{plan.study}.yaml").write_bytes(plan.canonical)

    status = site("approve", "--plan", folder, "--by", "A. Jones", "--yes", names_plan=False)

    assert status == (0 if allowed == 10 else 77)
    assert [site.why_not(plan) is None for plan in plans] == [allowed == 10] * 2
    (empty := site.folder / "empty").mkdir()
    assert site("approve", "--plan", empty, "--by", "A. Jones", "--yes", names_plan=False) == 2


@pytest.mark.parametrize("typed", ["n", "", "yes please"])
def test_a_terminal_is_asked_before_a_plan_is_approved(site: Site, monkeypatch: pytest.MonkeyPatch, typed: str) -> None:
    """The plan is shown in short, with what could be learnt at worst; without a y nothing is approved."""
    plan = site.plan()
    terminal = io.StringIO(f"{typed}\n" + "n\n")
    terminal.isatty = lambda: True  # type: ignore[method-assign]
    monkeypatch.setattr(sys, "stdin", terminal)

    assert site("approve", "--by", "A. Jones") == 2
    for words in ("In short", "Task: 3 hospitals (a, b, c)", "An example", "At worst", "approve study version 1?"):
        assert words in site.out
    assert "Nothing was approved" in site.err
    assert find_approval(site.folder / "state", plan) is None


@pytest.mark.parametrize("words", [("--yes",), ()])
def test_a_yes_approves(site: Site, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]) -> None:
    """Typed at the terminal, or given to a script as an option, which then is not asked."""
    plan = site.plan()
    terminal = io.StringIO("y\n")
    terminal.isatty = lambda: True  # type: ignore[method-assign]
    monkeypatch.setattr(sys, "stdin", terminal)

    assert site("approve", "--by", "A. Jones", *words) == 0
    assert ("Does A. Jones approve" in site.out) == (not words)
    assert find_approval(site.folder / "state", plan) is not None


def test_a_changed_plan_shows_what_has_changed(site: Site) -> None:
    """Review and approval of the next version name each key that differs from the one approved before."""
    site.plan()
    assert site("review") == 0
    assert "No other plan of this study was ever approved here." in site.out
    assert site("approve", "--by", "A. Jones", "--yes") == 0

    site.plan(version=2, start={"seed": 9})
    for command in ("review", "approve"):
        assert site(*((command,) if command == "review" else (command, "--by", "A. Jones", "--yes"))) == 0
        assert "Changes since version 1, which was approved here last" in site.out
        rows = [line.split() for line in site.out.splitlines()]
        assert ["start.seed", "0", "9"] in rows
        assert ["version", "1", "2"] in rows
    assert "Version 1 of this study no longer trains here." in site.out


def test_each_beside_counts(site: Site) -> None:
    """The sums of each plan can be subtracted from those of the earlier ones, so the third needs two names."""
    site.allow(secure_aggregation="required")
    names: list[str] = []
    for number in (2.0, 4.0, 8.0):
        plan = site.plan(study=f"s{number:g}", masking={"required": True, "clipping_range": number})
        words = [word for name in names for word in ("--beside", name)]
        assert site("approve", "--by", "A. Jones", "--yes", *words[2:]) == (77 if names else 0)
        assert site("approve", "--by", "A. Jones", "--yes", *words) == 0
        names.append(plan.run_name)


@pytest.mark.parametrize("until", ["2020-01-01", "9999-12-31", "2020-01-01T10:00", "31.12.2099", "2099-06-31"])
def test_an_end_that_is_none_is_told(site: Site, until: str) -> None:
    """A day that has passed and words that are no day approve nothing."""
    plan = site.plan()

    assert site("approve", "--by", "A. Jones", "--until", until, "--yes") == 2
    assert ("future" in site.err) == until.startswith(("2020", "9999"))
    assert site.why_not(plan) is not None


def test_a_day_means_its_end(site: Site) -> None:
    """An approval until a day is valid through that day."""
    plan = site.plan()
    day = (datetime.now(UTC) + timedelta(days=3)).date()

    assert site("approve", "--by", "A. Jones", "--until", day.isoformat(), "--yes") == 0
    found = find_approval(site.folder / "state", plan)
    midnight = datetime(day.year, day.month, day.day, tzinfo=UTC) + timedelta(days=1)
    assert why_not(found, approvers=1, now=midnight - timedelta(seconds=1)) is None
    assert why_not(found, approvers=1, now=midnight) is not None
    assert site("review") == 0
    assert f"until {midnight.isoformat(timespec='seconds')}" in site.out


def test_without_a_terminal_nothing_is_approved_unasked(site: Site) -> None:
    """A script must use --yes. The refusal names it and approves nothing."""
    plan = site.plan()

    assert site("approve", "--by", "A. Jones") == 2

    assert "--yes" in site.err
    assert find_approval(site.folder / "state", plan) is None


def test_withdrawing_is_on_record_and_stays(site: Site) -> None:
    """The log has the action with its person. A second finds nothing, and a new approval restores the site."""
    plan = site.plan()
    assert site("withdraw", "--by", "B. Smith") == 2  # nobody has agreed yet
    site("approve", "--by", "A. Jones", "--yes")

    assert site("withdraw", "--by", "B. Smith") == 0
    assert site.events()[-1]["event"] == "plan_withdrawn"
    assert site.events()[-1]["by"] == "B. Smith"
    assert site.why_not(plan) is not None
    assert site("review") == 0
    assert "This plan is not permitted here: B. Smith withdrew this site from the plan at" in site.out
    assert site("withdraw", "--by", "B. Smith") == 2
    assert site("approve", "--by", "A. Jones", "--yes") == 0
    assert site.why_not(plan) is None


def test_without_a_plan_the_only_approved_study_is_withdrawn(site: Site) -> None:
    """A newer plan that nobody approved does not stand in the way. With two approved studies nothing is guessed."""
    state, first = site.folder / "state", site.plan()
    site("approve", "--by", "A. Jones", "--yes")
    keep_plan(state, site.plan(study="another"))

    assert site("withdraw", "--by", "B. Smith", names_plan=False) == 0
    assert "study version 1" in site.out
    assert site.why_not(first) is not None

    site.plan()
    site("approve", "--by", "A. Jones", "--yes")
    site.plan(study="third")
    site("approve", "--by", "A. Jones", "--yes")
    keep_plan(state, site.plan(study="another"))
    assert site("withdraw", "--by", "B. Smith", names_plan=False) == 2
    assert "Name the file of the approved plan with the option --plan." in site.err
    assert site.why_not(first) is None


def test_a_broken_log_keeps_nobody_in_a_study(site: Site) -> None:
    """The withdrawal counts although it cannot be recorded, and the command reports that the log is broken."""
    plan = site.plan()
    site("approve", "--by", "A. Jones", "--yes")
    log = site.folder / "state" / "gate" / "gate.sqlite"
    with closing(sqlite3.connect(log, isolation_level=None)) as store:
        store.execute("DROP TRIGGER records_UPDATE")
        store.execute("UPDATE records SET line = replace(line, 'A. Jones', 'B. Jones')")

    assert site("withdraw", "--by", "B. Smith") == StoreDamaged.exit_status
    assert site.why_not(plan) is not None
