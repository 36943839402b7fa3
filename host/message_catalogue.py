"""Defines the exit statuses, and the identifiers of errors and events with their help.

E is a failure, W a warning, I a fact, D a finding of `doctor`. An identifier never gets a second meaning. Numbers below
100 are errors of every program, 100 to 199 the coordinator's, 200 to 399 a site's, 400 and above findings of both
doctors. Services are never restarted after 77 and 78.
"""

from __future__ import annotations

from collections.abc import Callable, MutableMapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from protos.errors import UsageError
from protos.plan.documents import nearest_name


@dataclass(frozen=True)
class ExitCode:
    """One exit status: who can correct it, and whether the service starts again after it."""

    number: int
    meaning: str
    who: str
    is_restarted: bool


EXIT_CODES: Final = (
    ExitCode(0, "The program finished, or a person stopped it.", "", False),
    ExitCode(1, "The network, a disk or another process failed. A new attempt or the operator can correct the failure.",
             "operator", True),
    ExitCode(2, "The command or an option is wrong. Nothing was done.", "whoever typed them", False),
    ExitCode(3, "Only from doctor: everything works, but there are warnings.", "operator", False),
    ExitCode(70, "A defect of the program. The log line shows the place.", "the project", True),
    ExitCode(77, "The policy, the register of sites, the plan or the coordinator refused the request.",
             "people on both sides", False),
    ExitCode(78, "The configuration, the contract or the table is wrong.", "operator, data manager", False),
    ExitCode(130, "A person interrupted the program with Ctrl-C.", "", False),
)  # fmt: skip


@dataclass(frozen=True)
class Entry:
    """An error or event of the catalogue: a letter and three digits, a name, its meaning and what the reader does."""

    identifier: str
    name: str
    meaning: str
    remedy: str = "Nothing."

    @property
    def lines(self) -> str:
        """Return the help on this entry as the text that the command `explain` prints."""
        return f"{self.identifier}  {self.name}\n  {self.meaning}\n  {self.remedy}"


ERRORS: Final = (
    Entry("E001", "failure", "The program failed.", "Read the last line of the message."),
    Entry("E002", "wrong words", "The command line is wrong. Nothing was done.", "Run the command with --help."),
    Entry("E003", "refused",
          "The hospital's policy, the office's register of sites or the program at the other end refused the request. "
          "A restart does not help.",
          "Contact the people that the message names."),
    Entry("E004", "file or setting",
          "A file or setting of this computer is wrong. Nothing was sent.",
          (
              "Correct the file or setting that the message names. The command `doctor` checks all files and "
              "settings at once."
          )),
    Entry("E005", "table",
          "The patients' table does not match its data contract. Nothing was trained and nothing was sent.",
          "Correct the patients' table or the data contract. `site-agent check` lists every finding."),
    Entry("E006", "protocol",
          "The program at the other end sent a message that violates the protocol of this version. The connection was "
          "closed.",
          "Compare the versions of both programs. Then inform the federation office of both versions."),
    Entry("E007", "not there",
          "The program at the other end, a disk, a process or a graphics card is not available now. No data was lost.",
          "If the message names a file or a disk, free space on this disk, and start the programs again. Otherwise run "
          "`doctor` and try again later."),
    Entry("E008", "defect",
          "The program has a defect. The program stopped, and nothing more was sent.",
          "Report this line of the log to the project. The line has file names and line numbers, but no patient data."),
    Entry("E009", "operating system",
          "The operating system refused an operation. Usual causes are a full disk and a missing permission.",
          "Run `doctor`. The command `doctor` checks disks, owners and file modes."),
    Entry("E010", "mistakes in a file",
          "A YAML file has mistakes. The message lists each mistake with its line and column. A running program keeps "
          "its old settings.",
          "Correct the lines that the message lists, and try again. Every key is described in docs/configuration.md."),
    Entry("E011", "journal damaged",
          "The journal of a run is damaged or was changed. The run does not resume.",
          "Stop the coordinator and move its state folder to another place. Then restore the newest backup with "
          "`coordinator restore` and `--key-file`. Without a backup, remove the plan from coordinator.yaml, and "
          "announce a new version of the plan."),
    Entry("E012", "gate",
          "The gate process refused to send a contribution. Nothing from this round was sent.",
          "Tell the study's researcher."),
    Entry("E013", "trainer stopped",
          "The trainer process stopped and printed the reason. Nothing from this round was sent.",
          "Read the trainer's last message with `journalctl -u site-trainer`."),
    Entry("E014", "audit log",
          "The audit log cannot be written, or somebody changed it. Nothing is sent until a person has corrected the "
          "fault.",
          "Free space on the disk of the audit log. If the log was changed, do not touch the log file, and call the "
          "security officer. The security officer starts a new log with `audit restart`."),
    Entry("E015", "trainer gone",
          "The trainer process ended without a message. Nothing from this round was sent.",
          "Check with `dmesg` and `journalctl -u site-trainer` whether the operating system stopped the trainer for "
          "lack of memory."),
    Entry("E016", "network differs",
          "The neural network of this site has other parameters than the approved plan. Nothing was trained.",
          "Install the same version of global-layers at every site."),
    Entry("E017", "state lost",
          "This site took part in a run, but its training state is neither in memory nor on disk.",
          "Restore this site's whole state folder from a backup, or contact the federation office."),
    Entry("E018", "training diverged",
          "Training diverged: every model returns infinite or undefined predictions. The audit log lists what was sent "
          "earlier.",
          "Agree with the researcher on a smaller learning rate. Check the table for extreme values."),
    Entry("E020", "coordinator not reached",
          "The site cannot reach the coordinator. No data was lost. The site retries at least every 30 seconds.",
          "If the site still cannot connect after some minutes, run `site-agent doctor --config hospital.yaml`."),
    Entry("E021", "certificate not accepted",
          "The coordinator does not accept this certificate. The certificate was revoked or replaced, or belongs to "
          "another federation.",
          "Ask the federation office. The office can check the certificate with `pki list`."),
    Entry("E022", "enrolment port not reached",
          "The coordinator's enrolment port did not respond. The site's invitation and certificate are still valid.",
          "Run `site-agent doctor`. Ask the office whether `enrolment_listen` is set."),
    Entry("E023", "no invitation",
          "This site has no certificate, and no invitation with which the site could request a certificate.",
          "Ask the federation office for an invitation. Write the path of the invitation file in hospital.yaml."),
    Entry("E024", "invitation refused",
          "The invitation was already used, was replaced, or is too old. No certificate was issued.",
          "Ask the federation office for a new invitation."),
    Entry("E025", "policy refuses",
          "The policy of this hospital does not allow the study. Nothing more is sent for this study.",
          "Agree with the researcher on another plan, or ask the owner of the policy to change the policy."),
    Entry("E026", "part ended",
          "The coordinator ended this site's part in the run permanently. The message has the reason.",
          "Talk to the federation office before you start again."),
    Entry("E027", "trainer not listening",
          "The service site-trainer does not respond on the trainer socket. Nothing was sent from this site.",
          "Run `systemctl status site-trainer`. The log of the service site-trainer shows the reason."),
    Entry("E028", "address in use",
          "The program cannot listen on an address. The address is in use, does not belong to this computer, or is not "
          "permitted.",
          "Choose another address, or stop the program that already uses this address. `ss -tlnp` shows which program "
          "uses an address."),
    Entry("E029", "agent gone",
          "The site agent's process ended. No data was lost. The round continues when the agent runs again.",
          "Run `systemctl status site-agent`. If you started the site in a terminal, the agent restarts by itself."),
    Entry("E030", "nobody answers",
          "No program runs with this state directory, or your user account may not connect to the program.",
          "Start the program, or run the command under the user account of the program: `sudo -u site-agent ...`."),
    Entry("E031", "directory in use",
          "Another program uses the state directory. If two programs used a state directory at the same time, they "
          "would damage it.",
          "Stop the other program first, or use another state directory."),
    Entry("E032", "unsafe file",
          "Other user accounts can access a secret file or directory, so the program does not use this file or "
          "directory.",
          "Correct the owner and the mode as the message says. If other people had access, make a new key."),
    Entry("E033", "no answer",
          "A program uses the state directory, but does not answer commands. Perhaps it starts, ends or hangs.",
          "Wait a minute. If the program still does not answer, end it as the message says, and start it again. The "
          "run then continues."),
)  # fmt: skip


def identify(
    entries: Sequence[Entry],
    # the form that structlog requires of a processor
) -> Callable[[Any, str, MutableMapping[str, Any]], MutableMapping[str, Any]]:
    """Return a function that adds each event's identifier to its log line."""
    identifiers = {entry.name: entry.identifier for entry in entries}

    def process(_: Any, __: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
        found = identifiers.get(str(event.get("event")))
        if found is not None:
            event["id"] = found
        return event

    return process


def explained(entries: Sequence[Entry], wanted: str | None) -> str:
    """Return the help on an identifier or event, or a list of all identifiers. Raises UsageError for an unknown one."""
    if wanted is None:
        return "\n".join(f"{entry.identifier}  {entry.name}" for entry in entries)
    for entry in entries:
        if wanted.upper() == entry.identifier or wanted == entry.name:
            return entry.lines
    near = nearest_name(wanted, [word for entry in entries for word in (entry.identifier, entry.name)])
    hint = "none is like it." if near is None else f"did you mean {near}?"
    raise UsageError(
        what=f"This program has no message or event with the name {wanted}. {hint}",
        consequence="Nothing was done.",
        remedy="Run `explain` without an identifier to list all messages.",
    )
