"""Makes the console's own pages, which show the actions for a person's role and the result of an action.

Pure markup, in the style of all pages.

Every text is escaped here or by the page kit. No page has a script, and none loads anything.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any, Final, assert_never

from host.printed_page import Section, page, paragraph, table
from site_agent.console.console_actions import ACTS, Done, for_buttons
from site_agent.console.console_links import ROLE_NAMES, Role, Session

_MOST_LINES: Final = 200
_REPEATED: Final = (
    "You sent this form before, so the action was not repeated. This page shows the result of your first request."
)
_VERDICTS: Final = {
    0: "This hospital's policy allows the plan.",
    77: "This hospital's policy refuses the plan, so you cannot approve it. The review of the plan shows the reasons.",
    78: "This hospital's table has too few rows for the plan. The review of the plan shows how many rows are needed.",
}


@dataclass(frozen=True, kw_only=True)
class KnownPlan:
    """A plan that was announced at this site, with the facts that the console's first page shows.

    Attributes:
        title: study and version.
        digest: in hexadecimal.
        standing: the persons who decided, and what is missing, in a few sentences.
        is_approved: whether there is an approval to withdraw.
        is_damaged: whether the file with the approval cannot be read.
    """

    title: str
    digest: str
    standing: str
    is_approved: bool
    is_damaged: bool = False


@dataclass(frozen=True, kw_only=True)
class Shelf:
    """The facts about this site that the console's first page shows.

    Attributes:
        site: the hospital's name.
        plans: the announced plans, the latest first; None if this user cannot read them.
        runs: names of runs with models, the latest first.
    """

    site: str
    plans: Sequence[KnownPlan] | None
    runs: Sequence[str]


@dataclass(frozen=True, kw_only=True)
class Desk:
    """Makes the HTML pages of one console session.

    Attributes:
        session: the session of the page.
        account: the user of this computer who runs every command.
        fixed_name: the name from the start of the console; empty if it is typed on the page.
    """

    session: Session
    account: str
    fixed_name: str

    def home(self, shelf: Shelf) -> str:
        """Return the first page of the console, with every action for the roles of this session."""
        mine = [role for role in Role if role in self.session.roles]
        sections = [section for role in mine for section in self._sections(role, shelf)]
        roles = " and ".join(ROLE_NAMES[role] for role in mine)
        name = f" The audit log records your decisions under the name {self.fixed_name}." if self.fixed_name else ""
        opening = [
            paragraph(f"You are here as {roles}.{name}"),
            paragraph(
                f"Each button starts a program on this computer, under the user account {self.account}. Some of these "
                "programs need a minute.",
                "soft",
            ),
            self._form("leave", label="Leave the console"),
        ]
        return page(f"Console of {shelf.site}", opening, sections, has_forms=True)

    def plan(self, plan: KnownPlan, status: int, document: int) -> str:
        """Return the page on which a person decides about a reviewed plan."""
        known, name = {"plan": plan.digest}, self._name()
        reading = [paragraph(_VERDICTS.get(status, "")), self._link(document, "Read the review")]
        sections = [Section(heading="1. Read the review", parts=reading)]
        standing = paragraph(plan.standing, "warning" if plan.is_damaged else "")
        if status == 77 or plan.is_damaged:
            sections.append(Section(heading="2. Decide", parts=[standing]))
        else:
            until = '<label>Last day of the approval (empty: no end) <input type="date" name="until"></label>'
            parts = [standing, self._form("approve", hidden=known, fields=name + until)]
            if plan.is_approved:
                words = (
                    "Another person can also approve the plan. A person who has approved the plan can change the last "
                    "day of this approval."
                )
                parts.insert(1, paragraph(words))
            heading = "2. Approve the plan again" if plan.is_approved else "2. Approve the plan"
            sections.append(Section(heading=heading, parts=parts))
        if plan.is_approved:
            words = "This site stops at once, even during training. Numbers that it already sent remain in the sums."
            parts = [paragraph(words), self._form("withdraw", hidden=known, fields=name)]
            sections.append(Section(heading="Or end the approval", parts=parts))
        elif not plan.is_damaged:
            because = '<label>Reason <input name="because" required maxlength="300"></label>'
            words = "The audit log records your name and your reason. No training starts under a plan without approval."
            parts = [paragraph(words), self._form("refuse", hidden=known, fields=name + because)]
            sections.append(Section(heading="Or refuse the plan", parts=parts))
        opening = [self._back(), paragraph(f"Plan digest {plan.digest}", "soft")]
        return page(plan.title, opening, sections, has_forms=True)

    def examination(self, done: Done, document: int) -> str:
        """Return the page with the findings about the hospital's table, and a form to accept open warnings."""
        read = self._link(document, "Read the examination")
        sections = [Section(heading="What was found", parts=[read, *self._lines(done.text)])]
        digest = _to_accept(done)
        if digest is not None:
            form = self._form("accept", hidden={"digest": digest}, fields=self._name())
            words = "Accept the warnings only if you have read each warning and know its cause."
            sections.append(Section(heading="Decide about the warnings", parts=[paragraph(words), form]))
        title = "The table can be used" if done.status == 0 else "The table cannot be used yet"
        title += ". It has warnings that nobody has accepted" if done.status == 0 and digest is not None else ""
        return page(title, [self._back()], sections, has_forms=True)

    def models(self, text: str) -> str:
        """Return the page on which a person compares the models of a run and adopts a model."""
        listed: dict[str, Any] = json.loads(text)
        rows = [(model["title"], "in use" if model["in_use"] else "") for model in listed["models"]]
        notices = [paragraph(for_buttons(notice, self.session.roles)) for notice in listed["notices"]]
        options = "".join(
            f'<option value="{escape(model["name"])}">{escape(model["title"])}</option>' for model in listed["models"]
        )
        choose = f'<label>Model <select name="model">{options}</select></label>'
        adopt = self._form("adopt", hidden={"run": listed["run"]}, fields=choose + self._name())
        words = "Predictions, exports and monitoring use the adopted model until a person adopts another model."
        sections = [
            Section(heading="Compare the models", parts=[table("Models", ("model", "use"), rows), *notices]),
            Section(heading="Adopt a model", parts=[paragraph(words), adopt]),
        ]
        return page(f"Models of the run {listed['run']}", [self._back()], sections, has_forms=True)

    def result(self, done: Done) -> str:
        """Return a page that shows a command's output, and whether the command succeeded."""
        parts = [*self._lines(done.text), *self._lines(done.problems)]
        if done.status:
            parts.append(paragraph(f"The program ended with exit status {done.status}.", "soft"))
        title = "Done" if done.status == 0 else "This was not done"
        return page(title, [self._back()], [Section(heading="What the program reported", parts=parts)], has_forms=True)

    def message(self, text: str) -> str:
        """Return a page that explains why the console refused a request of this session."""
        return page("This was not done", [self._back()], [Section(heading="The reason", parts=list(self._lines(text)))])

    def with_way_back(self, document: str) -> str:
        """Return a page that a command wrote, with an added link to the console's first page."""
        return document.replace("<body>", f"<body>{self._back()}", 1)

    def repeated(self, shown: str) -> str:
        """Return the page `shown` with a warning that the person sent the same form a second time."""
        return shown.replace("<body>", f"<body>{paragraph(_REPEATED, 'warning')}", 1)

    def _sections(self, role: Role, shelf: Shelf) -> Iterator[Section]:
        match role:
            case Role.DATA_MANAGER:
                words = "Compare the hospital's table with its contract, and see every finding. Nothing is sent."
                yield Section(heading="The table", parts=[paragraph(words), self._form("examine")])
            case Role.OFFICER:
                yield from self._plans(shelf.plans)
                words = "Check the audit log, and read what this site sent and who decided."
                yield Section(heading="The audit log", parts=[paragraph(words), self._form("log")])
            case Role.CLINICIAN:
                yield self._models(shelf.runs)
            case _:
                assert_never(role)

    def _plans(self, plans: Sequence[KnownPlan] | None) -> Iterator[Section]:
        if not plans:
            words = "No plan has arrived yet. A plan appears on this page after the coordinator has announced it."
            if plans is None:
                words = f"The user {self.account} cannot read the plans. Ask the operator to start the console as root."
            yield Section(heading="Plans", parts=[paragraph(words)])
        for plan in plans or ():
            standing = paragraph(plan.standing, "warning" if plan.is_damaged else "")
            review = self._form("review", hidden={"plan": plan.digest})
            yield Section(heading=f"Plan {plan.title}", parts=[standing, review])

    def _models(self, runs: Sequence[str]) -> Section:
        heading = "Report and models"
        if not runs:
            words = "No run has ended at this hospital yet. Reports and models appear here after the first run."
            return Section(heading=heading, parts=[paragraph(words)])
        options = "".join(f'<option value="{run}">{run}</option>' for run in map(escape, runs))
        form = self._form("report", "compare", fields=f'<label>Run <select name="run">{options}</select></label>')
        return Section(heading=heading, parts=[paragraph("The latest run is first in this list."), form])

    def _name(self) -> str:
        if self.fixed_name:
            return f"<span>In the name of {escape(self.fixed_name)}</span> "
        value = escape(self.session.by)
        return f'<label>Your name <input name="by" required maxlength="120" value="{value}"></label>'

    def _link(self, document: int, words: str) -> str:
        return f'<p><a href="{self.session.address}document/{document}">{words}</a></p>'

    def _back(self) -> str:
        return f'<p><a href="{self.session.address}">Back to the console</a></p>'

    def _form(self, *acts: str, hidden: Mapping[str, str] | None = None, fields: str = "", label: str = "") -> str:
        """Return a form with one button for each action. The form has a number, so that its action runs only once."""
        known = {"form_key": self.session.form_key, "form": str(self.session.new_form()), **(hidden or {})}
        kept = "".join(f'<input type="hidden" name="{name}" value="{escape(text)}">' for name, text in known.items())
        buttons = " ".join(
            f'<button name="action" value="{act}">{escape(label or ACTS[act].label)}</button>' for act in acts
        )
        return f'<form method="post" action="{self.session.address}">{kept}{fields}{buttons}</form>'

    def _lines(self, text: str) -> Iterator[str]:
        lines = [for_buttons(line, self.session.roles) for line in text.splitlines() if line.strip()]
        yield from map(paragraph, lines[:_MOST_LINES])
        if len(lines) > _MOST_LINES:
            yield paragraph(f"{len(lines) - _MOST_LINES} more lines of the output are not shown on this page.", "soft")


def _to_accept(done: Done) -> str | None:
    """Return the digest of a table examination if a person can accept its warnings, otherwise None."""
    if done.facts is None:
        return None
    facts: dict[str, Any] = json.loads(done.facts)
    levels = {finding["level"] for finding in facts["findings"]}
    is_open = facts["accepted_by"] is None and "warning" in levels and "error" not in levels
    return str(facts["digest"]) if is_open else None
