"""Lists every event that a site's processes log, with its identifier and help."""

from __future__ import annotations

from typing import Final

from host.message_catalogue import Entry

_NOTHING: Final = "Nothing."

EVENTS: Final = (
    Entry("I200", "enrolled", "This site received its certificate.", _NOTHING),
    Entry("I201", "run_joined", "This site takes part in a run that was approved here.", _NOTHING),
    Entry(
        "I202",
        "contribution_released",
        "A contribution left this site. The audit log has the hash of the contribution.",
        _NOTHING,
    ),
    Entry("I203", "run_finished", "A run ended. Model and report are in the state folder.", _NOTHING),
    Entry(
        "I211",
        "sweep_decided",
        "All alternatives of a sweep are complete. `run` has the lowest mean validation loss over all sites.",
        "If the person responsible at this hospital agrees, run `site-agent adopt` with --run and the name of the run.",
    ),
    Entry("I204", "coordinator_parted", "The coordinator closed the stream. The log line states the reason.", _NOTHING),
    Entry(
        "I205",
        "configuration_taken_over",
        "hospital.yaml was read again. The line names the keys that need a restart.",
        _NOTHING,
    ),
    Entry(
        "I206",
        "hours_awaited",
        "The current time is outside the hours that the policy allows. This site connects when the allowed hours "
        "start.",
        "No action is needed. To change the hours, edit `hours` in the policy.",
    ),
    Entry("I207", "certificate_renewed", "This site received its next certificate, with a new key.", _NOTHING),
    Entry(
        "I210",
        "agent_kept_from_patients",
        "The kernel denies the agent's user access to the table.",
        _NOTHING,
    ),
    Entry(
        "W256",
        "agent_may_read_patients",
        "Agent and trainer run as one user. "
        "The program itself prevents access to the table. The kernel does not prevent this access.",
        "Run the trainer as its own user, as the packages do. See docs/operator.md.",
    ),
    Entry(
        "W260",
        "gate_may_write_approvals",
        "The user of the gate can also write approvals. Only the program itself, not the kernel, prevents this.",
        "Run the programs as services, as the packages do. See docs/operator.md.",
    ),
    Entry(
        "W250",
        "enrolment_awaits_approval",
        "The federation office has not approved this site yet. Nothing trains.",
        "Read the fingerprint to the office. `site-agent identity` shows the fingerprint.",
    ),
    Entry(
        "W251",
        "approval_awaited",
        "Nobody at this hospital has approved the announced plan. Nothing trains.",
        "Run `site-agent review`. After that, run `site-agent approve`.",
    ),
    Entry(
        "W252",
        "coordinator_unavailable",
        "The site cannot reach the coordinator. The site retries by itself and nothing is lost.",
        "If this continues, run `site-agent doctor`.",
    ),
    Entry(
        "W253",
        "enrolment_unavailable",
        "The site cannot reach the enrolment port. The site retries by itself.",
        "If this continues, run `site-agent doctor`. Ask the office whether enrolment is open.",
    ),
    Entry(
        "W254",
        "trainer_gone",
        "The trainer ended while it was needed. A new trainer starts and continues from the disk.",
        "If this happens again, check with `journalctl -u site-trainer` whether memory was too small.",
    ),
    Entry(
        "W255",
        "clock_differs",
        "The clocks of this computer and the coordinator differ by more than a minute. "
        "Valid certificates may be refused.",
        "Run `timedatectl set-ntp true`, or ask the administrator of the time server.",
    ),
    Entry(
        "W258",
        "run_rolled_back",
        "Too few sites accepted the shared parameters. The run returned to the last accepted parameters.",
        "If this happens again, compare labels, units and software with the other hospitals.",
    ),
    Entry(
        "W259",
        "coordinator_records_wait",
        "The coordinator used up the bytes that it may add to this site's audit log in a day. Log checkpoints are "
        "confirmed later. Training continues. The line has the limit.",
        "If no study trains day and night, ask the federation office why its log grows so fast.",
    ),
    Entry(
        "W257",
        "own_certificate_ends_soon",
        "This site's certificate was issued by the hospital's own authority and ends within 30 days. This "
        "certificate does not renew itself.",
        "Run `site-agent request-certificate`. The hospital's authority then issues the certificate. "
        "After that, run `site-agent install-certificate`.",
    ),
    Entry(
        "E280",
        "configuration_kept",
        "hospital.yaml was read again and has mistakes. The old settings stay in use.",
        "Run `site-agent check`, which lists every mistake. Correct them and reload.",
    ),
    Entry("I300", "trainer_started", "The trainer's process started, without a network.", _NOTHING),
    Entry("I301", "study_prepared", "The network of a run is ready, and its table has no errors.", _NOTHING),
    Entry("I305", "trainer_kept_from_network", "The kernel blocks all network access of the trainer.", _NOTHING),
    Entry("I302", "study_restored", "Training continues from a state on disk.", _NOTHING),
    Entry("I303", "study_reported", "The report on this site's gain was written.", _NOTHING),
    Entry(
        "I306",
        "others_weighed",
        "The weight of the other hospitals' score in this site's model was computed.",
        _NOTHING,
    ),
    Entry(
        "I307", "model_awaited", "This site only receives. This site waits for the result of the other sites.", _NOTHING
    ),
    Entry(
        "I308",
        "model_received",
        "This site received the other hospitals' model. It sent no data about its patients.",
        _NOTHING,
    ),
    Entry(
        "W353",
        "column_differs",
        "The values of a column differ from those at the other sites, for example because of a wrong unit or swapped "
        "codes. The mistake may also be at the other sites, or there may be no mistake.",
        "Check the column's unit and codes in the contract. `site-agent review` shows the differences.",
    ),
    Entry(
        "W350",
        "trainer_not_isolated",
        "The trainer could not remove its own network access. "
        "The trainer opens no connection, but the kernel does not prevent one.",
        "Run the trainer with its unit (PrivateNetwork=yes), or allow user namespaces.",
    ),
    Entry("W351", "agent_gone_without_its_answer", "The agent ended while the trainer worked for it.", _NOTHING),
    Entry(
        "W352",
        "saved_state_damaged",
        "A saved state on disk is damaged. An older state is used and rounds are repeated.",
        "Check the disk of the state folder.",
    ),
    Entry(
        "I304",
        "table_has_warnings",
        "The table matches its contract, but has findings that a person should check.",
        "Run `site-agent check`.",
    ),
    Entry(
        "E281",
        "renewal_refused",
        "The coordinator does not renew this site's certificate. The old certificate is valid until it expires.",
        "Ask the federation office to check with `pki list` whether this site is still a member.",
    ),
)
