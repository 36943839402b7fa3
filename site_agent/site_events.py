"""Every event that a site's two processes log, with its identifier and help."""

from __future__ import annotations

from typing import Final

from host.message_catalogue import Entry

_NOTHING: Final = "Nothing."

EVENTS: Final = (
    Entry("I200", "enrolled", "This site has its certificate.", _NOTHING),
    Entry("I201", "run_joined", "This site takes part in a run that was approved here.", _NOTHING),
    Entry("I202", "contribution_released", "A contribution left this site; the audit log has its hash.", _NOTHING),
    Entry("I203", "run_finished", "A run is over; model and report are in the state folder.", _NOTHING),
    Entry("I204", "coordinator_parted", "The coordinator ended the stream and said why.", _NOTHING),
    Entry("I205", "configuration_taken_over", "hospital.yaml was read again; keys that wait are named.", _NOTHING),
    Entry(
        "I206",
        "hours_awaited",
        "The policy's hours are closed; this site is not connected until they open.",
        "Nothing, or change `hours` in the policy.",
    ),
    Entry("I207", "certificate_renewed", "This site has got its next certificate, with a new key.", _NOTHING),
    Entry(
        "I210",
        "agent_kept_from_patients",
        "The kernel keeps the agent's user away from the table.",
        _NOTHING,
    ),
    Entry(
        "W256",
        "agent_may_read_patients",
        "Agent and trainer run as one user, so that only the program itself keeps the agent away from the table.",
        "Run the trainer as a user of its own, as the packages do; see docs/operator.md.",
    ),
    Entry(
        "W260",
        "gate_may_write_approvals",
        "The user that runs the gate can also write approvals, so that only the program itself keeps from it.",
        "Run the programs as services, as the packages do; see docs/operator.md.",
    ),
    Entry(
        "W250",
        "enrolment_awaits_approval",
        "The federation office has not approved this site yet; nothing trains.",
        "Read them the fingerprint: `site-agent identity`.",
    ),
    Entry(
        "W251",
        "approval_awaited",
        "Nobody here has approved the announced plan; nothing trains.",
        "Run `site-agent review`, then `site-agent approve`.",
    ),
    Entry(
        "W252",
        "coordinator_unavailable",
        "No stream to the coordinator; this site tries again by itself and nothing is lost.",
        "If it lasts: `site-agent doctor`.",
    ),
    Entry(
        "W253",
        "enrolment_unavailable",
        "The enrolment port cannot be reached; this site tries again by itself.",
        "If it lasts: `site-agent doctor`, and ask the office whether enrolment is open.",
    ),
    Entry(
        "W254",
        "trainer_gone",
        "The trainer ended while it was needed; another one is started and goes on from the disk.",
        "If it happens again, look for a kill by memory: journalctl -u site-trainer.",
    ),
    Entry(
        "W255",
        "clock_differs",
        "This computer's clock and the coordinator's are more than a minute apart; certificates may be misjudged.",
        "Set up time synchronisation: `timedatectl set-ntp true`, or ask who runs the network's time server.",
    ),
    Entry(
        "W258",
        "run_rolled_back",
        "Too few sites accepted the shared parameters; the run returned to those that were accepted last.",
        "If it happens again, compare labels, units and software with the other hospitals.",
    ),
    Entry(
        "W257",
        "own_certificate_ends_soon",
        "This site's certificate is of the hospital's own authority and ends within 30 days; only people renew it.",
        "Run `site-agent request-certificate`, have your authority issue it, then `site-agent install-certificate`.",
    ),
    Entry(
        "E280",
        "configuration_kept",
        "hospital.yaml was to be read again and is wrong; what held before holds on.",
        "Correct it (`site-agent check` names every mistake) and reload again.",
    ),
    Entry("I300", "trainer_started", "The process with the patients has started, without a network.", _NOTHING),
    Entry("I301", "study_prepared", "The network of a run is built and its table is in order.", _NOTHING),
    Entry("I305", "trainer_kept_from_network", "The kernel keeps the trainer away from every network.", _NOTHING),
    Entry("I302", "study_restored", "Training goes on from a state on disk.", _NOTHING),
    Entry("I303", "study_reported", "The report on what this site gained is written.", _NOTHING),
    Entry("I306", "others_weighed", "How much the other hospitals' score counts in this site's model.", _NOTHING),
    Entry(
        "W350",
        "trainer_not_isolated",
        "The trainer could not give up the network by itself; it opens no connection, but nothing forbids it to.",
        "Run it as its unit does (PrivateNetwork=yes), or allow user namespaces.",
    ),
    Entry("W351", "agent_gone_without_its_answer", "The agent ended while the trainer worked for it.", _NOTHING),
    Entry(
        "W352",
        "saved_state_damaged",
        "A saved state on disk is damaged; an older one is used and rounds are made again.",
        "Check the disk that holds the state folder.",
    ),
    Entry(
        "I304",
        "table_has_warnings",
        "The table meets its contract, with findings that somebody should look at.",
        "Run `site-agent check`.",
    ),
    Entry(
        "E281",
        "renewal_refused",
        "The coordinator does not renew this site's certificate; the old one counts until it expires.",
        "Ask the federation office: `pki list` says whether this site is still a member.",
    ),
)
