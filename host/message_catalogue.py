"""Identifiers of what an operator may meet, each with its help: errors here, events with the program that logs them.

E is a failure, W something to look at, I a fact, D a finding of `doctor`. An identifier is never given a second
meaning. Numbers below 100 are errors of every program, 100 to 199 the coordinator's, 200 to 399 a site's, 400 and
above findings of both doctors.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from protos.errors import UsageError
from protos.plan.nearest import nearest_name


@dataclass(frozen=True)
class Entry:
    """One identifier.

    Attributes:
        identifier: a letter and three digits.
        name: the event as it is logged, or a name for the failure.
        meaning: what it says about the federation and the data.
        remedy: what to do, "Nothing." where nothing is to be done.
    """

    identifier: str
    name: str
    meaning: str
    remedy: str

    @property
    def lines(self) -> str:
        """As `explain` prints it."""
        return f"{self.identifier}  {self.name}\n  {self.meaning}\n  {self.remedy}"


ERRORS: Final = (
    Entry("E001", "failure", "The program could not do what it was asked.", "Follow the last line of the message."),
    Entry("E002", "wrong words", "The command line cannot be understood. Nothing was done.", "Read --help."),
    Entry(
        "E003",
        "refused",
        "The policy, the register or the other side says no. No restart changes that.",
        "Talk to the people named in the message.",
    ),
    Entry(
        "E004",
        "file or setting",
        "A file or setting of this computer is not as it has to be. Nothing was sent.",
        "Mend what the message names; `doctor` checks all of them at once.",
    ),
    Entry(
        "E005",
        "table",
        "The table does not meet its contract. Nothing was trained and nothing left this site.",
        "Mend table or contract; `site-agent check` tells every finding.",
    ),
    Entry(
        "E006",
        "protocol",
        "The other side sent what no honest program of this version sends. The conversation was ended.",
        "Compare the versions on both sides, then tell the federation office.",
    ),
    Entry(
        "E007",
        "not there",
        "A peer, a disk or a process is not there at the moment. Nothing is lost.",
        "Run `doctor`; try again later.",
    ),
    Entry(
        "E008",
        "defect",
        "The program met a mistake of its own. It stopped, and nothing more left this computer.",
        "Report the line with the file names and numbers; it holds nothing of any patient.",
    ),
    Entry(
        "E009",
        "operating system",
        "The operating system refused something: most often a full disk or a missing permission.",
        "Run `doctor`: it looks at disks, owners and modes.",
    ),
    Entry(
        "E010",
        "mistakes in a file",
        "A YAML file has mistakes; each is told with line and column. A running program keeps what held before.",
        "Correct the lines, then try again; docs/configuration.md lists every key.",
    ),
    Entry(
        "E011",
        "journal damaged",
        "A run's journal is not what the coordinator wrote. The run is not resumed.",
        "Bring back the run's whole folder from a backup, or take the plan out of coordinator.yaml.",
    ),
    Entry(
        "E012",
        "gate",
        "The gate did not let a contribution out. Nothing of this round left this site.",
        "Tell the study's researcher.",
    ),
    Entry(
        "E013",
        "trainer stopped",
        "The trainer ended with a reason, which it has printed itself. Nothing of this round left this site.",
        "Read its last message: journalctl -u site-trainer.",
    ),
    Entry(
        "E014",
        "audit log",
        "The audit log cannot be written or is not what was written. Nothing leaves until that is mended.",
        "Make room on its disk; if the log was changed, keep it as it is and call the security officer.",
    ),
    Entry(
        "E015",
        "trainer gone",
        "The trainer's process ended without a word. Nothing of this round left this site.",
        "Look for a kill by memory: journalctl -u site-trainer, dmesg.",
    ),
    Entry(
        "E016",
        "network differs",
        "The network built here has other tensors than the approved plan. Nothing was trained.",
        "Install the same version of global-layers everywhere.",
    ),
    Entry(
        "E017",
        "state lost",
        "The training of a run that this site was in is neither in memory nor on disk.",
        "Bring back this site's whole state folder from a backup, or tell the federation office.",
    ),
    Entry(
        "E018",
        "training diverged",
        "No model is left whose predictions are numbers. What left earlier is in the audit log.",
        "Agree on a smaller learning rate; look for extreme values in the table.",
    ),
    Entry(
        "E020",
        "coordinator not reached",
        "No stream to the coordinator. Nothing is lost; this site tries again by itself, at most every 30 seconds.",
        "If it lasts: site-agent doctor --config hospital.yaml.",
    ),
    Entry(
        "E021",
        "certificate not accepted",
        "The coordinator knows this certificate no more: revoked, replaced, or of another federation.",
        "Ask the federation office; they look with `pki list`.",
    ),
    Entry(
        "E022",
        "enrolment port not reached",
        "The port where certificates are asked for did not answer. Invitation and certificate are as good as before.",
        "Run site-agent doctor; ask the office whether enrolment_listen is open.",
    ),
    Entry(
        "E023",
        "no invitation",
        "This site has no certificate yet and no invitation to ask for one.",
        "Ask the federation office for an invitation and name it in hospital.yaml.",
    ),
    Entry(
        "E024",
        "invitation refused",
        "The invitation was used, replaced or is too old. No certificate was given.",
        "Ask the federation office for a new one.",
    ),
    Entry(
        "E025",
        "policy refuses",
        "The policy in this hospital's file does not allow the study. Nothing more leaves for it.",
        "Agree with the researcher on another plan, or have the policy changed by who may.",
    ),
    Entry(
        "E026",
        "part ended",
        "The coordinator ended this site's part for good; the message has its reason.",
        "Talk to the federation office before starting again.",
    ),
    Entry(
        "E027",
        "trainer not listening",
        "The trainer's service does not answer on its socket. Nothing left this site.",
        "systemctl status site-trainer; its journal says why.",
    ),
    Entry(
        "E028",
        "address in use",
        "An address cannot be listened on: in use, not of this computer, or not allowed.",
        "Choose another one, or end the program that has it: ss -tlnp.",
    ),
    Entry(
        "E029",
        "agent gone",
        "The process with the network ended. Nothing is lost; the round goes on when it is back.",
        "systemctl status site-agent; its journal says why. At a terminal it is started again by itself.",
    ),
    Entry(
        "E030",
        "nobody answers",
        "No program runs with this configuration's state directory, or this user may not ask it.",
        "Start it, or ask as the user that it runs as: sudo -u site-agent ...",
    ),
    Entry(
        "E031",
        "directory in use",
        "Another program already holds the state directory; two would spoil it.",
        "End the other one first, or give each a directory of its own.",
    ),
    Entry(
        "E032",
        "unsafe file",
        "A secret or private directory can be used by others, so it is not used at all.",
        "Mend its owner and mode as the message says; if others had access, make a new key.",
    ),
)


def named(entries: Sequence[Entry]) -> Mapping[str, str]:
    """Event -> identifier."""
    return {entry.name: entry.identifier for entry in entries}


def identify(
    entries: Sequence[Entry],
) -> Callable[[Any, str, MutableMapping[str, Any]], MutableMapping[str, Any]]:  # as structlog wants a processor
    """What puts the identifier of each event into its log line."""
    identifiers = named(entries)

    def process(_: Any, __: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
        found = identifiers.get(str(event.get("event")))
        if found is not None:
            event["id"] = found
        return event

    return process


def _nearest(entries: Sequence[Entry], wanted: str) -> str:
    near = nearest_name(wanted, [word for entry in entries for word in (entry.identifier, entry.name)])
    return f"did you mean {near}?" if near is not None else "none is like it."


def explained(entries: Sequence[Entry], wanted: str | None) -> str:
    """The help on an identifier or an event's name, or a list of all.

    Raises:
        UsageError: there is none of this name.
    """
    if wanted is None:
        return "\n".join(f"{entry.identifier}  {entry.name}" for entry in entries)
    for entry in entries:
        if wanted.upper() == entry.identifier or wanted == entry.name:
            return entry.lines
    raise UsageError(
        what=f"There is no {wanted} in this program's catalogue; {_nearest(entries, wanted)}",
        consequence="Nothing was done.",
        remedy="Run `explain` without an identifier to see all of them.",
    )
