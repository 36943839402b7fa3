"""The console's own pages: what a role can ask for, and what an act came to. Pure markup, in the style of all pages.

Every text is escaped here or by the page kit. No page has a script, and none loads anything.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any, Final, assert_never

from host.printed_page import Section, page, paragraph, table
from site_agent.console.console_links import Role, Session

ROLE_NAMES: Final = {
    Role.DATA_MANAGER: "data manager",
    Role.OFFICER: "data protection officer",
    Role.CLINICIAN: "clinician",
}
_MOST_LINES: Final = 200


@dataclass(frozen=True, kw_only=True)
class KnownPlan:
    """A plan that was announced here.

    Attributes:
        title: study and version.
        digest: in hexadecimal.
        standing: who agreed, or what is missing, in one sentence.
        is_approved: whether there is an approval that can be withdrawn.
    """

    title: str
    digest: str
    standing: str
    is_approved: bool


@dataclass(frozen=True, kw_only=True)
class Desk:
    """What every page of one session has.

    Attributes:
        session: whose page it is.
        site: the hospital's name.
        account: the user of this computer as whom every command runs.
        fixed_name: the name that was given when the console started; empty if it is typed on the page.
    """

    session: Session
    site: str
    account: str
    fixed_name: str

    def home(self, plans: Sequence[KnownPlan]) -> str:
        """The first page: everything that this session's roles can ask for."""
        mine = [role for role in Role if role in self.session.roles]
        sections = [section for role in mine for section in self._sections(role, plans)]
        roles = " and ".join(ROLE_NAMES[role] for role in mine)
        name = f" Your decisions are recorded under the name {self.fixed_name}." if self.fixed_name else ""
        opening = [
            paragraph(f"You are here as {roles}. Commands run as the user {self.account} of this computer.{name}"),
            paragraph("Each button runs one command of site-agent on this computer. Some take a minute.", "soft"),
            self._form({"leave": "Leave the console"}),
        ]
        return page(f"Console of {self.site}", opening, sections, has_forms=True)

    def plan(self, plan: KnownPlan, status: int, document: int) -> str:
        """A plan whose review was made: read it, then decide."""
        verdicts = {
            0: "This hospital's policy allows the plan.",
            77: "This hospital's policy refuses the plan. It cannot be approved.",
            78: "This site's table has too few rows for the plan.",
        }
        read = f'<p><a href="{self.session.address}document/{document}">Read the review</a></p>'
        known, name = {"plan": plan.digest}, self._name()
        sections = [Section(heading="1. Read what is asked", parts=[paragraph(verdicts.get(status, "")), read])]
        if status != 77:
            until = '<label>Until (a day, or empty) <input type="date" name="until"></label>'
            form = self._form({"approve": "Approve"}, known, name + until)
            sections.append(Section(heading="2. Approve it", parts=[paragraph(plan.standing), form]))
        if plan.is_approved:
            words = "This site stops at once. What left before stays in the sums."
            parts = [paragraph(words), self._form({"withdraw": "Withdraw"}, known, name)]
            sections.append(Section(heading="Or withdraw this site from it", parts=parts))
        else:
            because = '<label>Reason <input name="because" required maxlength="300"></label>'
            form = self._form({"refuse": "Refuse"}, known, name + because)
            sections.append(Section(heading="Or refuse it", parts=[form]))
        opening = [self._back(), paragraph(f"Plan digest {plan.digest}", "soft")]
        return page(plan.title, opening, sections, has_forms=True)

    def examination(self, status: int, text: str, document: int, to_accept: str | None) -> str:
        """The examined table: its findings, and the form that accepts warnings if `to_accept` has their digest."""
        read = f'<p><a href="{self.session.address}document/{document}">Read the examination</a></p>'
        sections = [Section(heading="What was found", parts=[read, *_lines(text)])]
        if to_accept is not None:
            form = self._form({"accept": "Accept the warnings"}, {"digest": to_accept}, self._name())
            words = "Accept them only if you have read each of them and know its cause."
            sections.append(Section(heading="Decide about the warnings", parts=[paragraph(words), form]))
        title = "The table can be used" if status == 0 else "The table cannot be used yet"
        return page(title, [self._back()], sections, has_forms=True)

    def models(self, text: str) -> str:
        """The models of a run, as `adopt --json` lists them."""
        listed: dict[str, Any] = json.loads(text)
        rows = [(model["title"], model["name"], "in use" if model["in_use"] else "") for model in listed["models"]]
        parts = [table("Models", ("model", "name in commands", "use"), rows), *map(paragraph, listed["notices"])]
        options = "".join(f'<option value="{escape(name)}">{escape(title)}</option>' for title, name, _ in rows)
        choose = f'<label>Model <select name="model">{options}</select></label>'
        adopt = self._form({"adopt": "Adopt this model"}, {"run": listed["run"]}, choose + self._name())
        words = "predict, export and monitor use the adopted model until a person adopts another one."
        sections = [
            Section(heading="Compare", parts=parts),
            Section(heading="Adopt", parts=[paragraph(words), adopt]),
        ]
        return page(f"Models of the run {listed['run']}", [self._back()], sections, has_forms=True)

    def result(self, status: int, text: str) -> str:
        """What a command printed, and whether it did what was asked."""
        title = "Done" if status == 0 else f"Not done (exit status {status})"
        section = Section(heading="The command reported", parts=list(_lines(text)))
        return page(title, [self._back()], [section], has_forms=True)

    def with_way_back(self, document: str) -> str:
        """A command's own page with a link to the console's first page."""
        return document.replace("<body>", f"<body>{self._back()}", 1)

    def _sections(self, role: Role, plans: Sequence[KnownPlan]) -> list[Section]:
        match role:
            case Role.DATA_MANAGER:
                return [self._data()]
            case Role.OFFICER:
                return [*self._plans(plans), self._log()]
            case Role.CLINICIAN:
                return [self._models()]
            case _:
                assert_never(role)

    def _data(self) -> Section:
        words = "Compare the table with its contract. Nothing leaves this computer."
        return Section(heading="The table", parts=[paragraph(words), self._form({"examine": "Examine the table"})])

    def _plans(self, plans: Sequence[KnownPlan]) -> Iterator[Section]:
        if not plans:
            words = "No plan that this user may read was announced here."
            yield Section(heading="Plans", parts=[paragraph(words)])
        for plan in plans:
            review = self._form({"review": "Review and decide"}, {"plan": plan.digest})
            yield Section(heading=f"Plan {plan.title}", parts=[paragraph(plan.standing), review])

    def _log(self) -> Section:
        words = "Verify the audit log, and read everything that left this site."
        return Section(heading="What left", parts=[paragraph(words), self._form({"log": "Read the audit log"})])

    def _models(self) -> Section:
        run = '<label>Run (empty for the latest) <input name="run" maxlength="200"></label>'
        form = self._form({"report": "Read the report", "compare": "Compare models"}, fields=run)
        return Section(heading="Report and models", parts=[form])

    def _name(self) -> str:
        if self.fixed_name:
            return f"<span>In the name of {escape(self.fixed_name)}</span> "
        value = escape(self.session.by)
        return f'<label>Your name <input name="by" required maxlength="120" value="{value}"></label>'

    def _back(self) -> str:
        return f'<p><a href="{self.session.address}">Back to the console</a></p>'

    def _form(self, acts: Mapping[str, str], hidden: Mapping[str, str] | None = None, fields: str = "") -> str:
        """A form with one button for each act: the act's name -> what is written on it."""
        known = {"form_key": self.session.form_key, **(hidden or {})}
        kept = "".join(f'<input type="hidden" name="{name}" value="{escape(text)}">' for name, text in known.items())
        buttons = " ".join(
            f'<button name="action" value="{name}">{escape(label)}</button>' for name, label in acts.items()
        )
        return f'<form method="post" action="{self.session.address}">{kept}{fields}{buttons}</form>'


def _lines(text: str) -> Iterator[str]:
    lines = [line for line in text.splitlines() if line.strip()]
    yield from map(paragraph, lines[:_MOST_LINES])
    if len(lines) > _MOST_LINES:
        yield paragraph(f"{len(lines) - _MOST_LINES} further lines are in the page.", "soft")
