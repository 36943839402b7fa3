"""Lists every event that the processes of a site log, each with a code and a help text for the operator."""

from __future__ import annotations

from typing import Final

from host.message_catalogue import Entry

EVENTS: Final = (
    Entry("I200", "enrolled", "This site received its certificate from the federation."),
    Entry("I201", "run_joined", "This site takes part in a run that a person at this hospital approved."),
    Entry("I202", "contribution_released",
          "This site sent a contribution to the coordinator. The audit log has a hash (checksum) of the contribution."),
    Entry("I203", "run_finished", "A run ended. The model and the report of this run are in the state folder."),
    Entry("I204", "coordinator_parted", "The coordinator closed the connection to this site. The log line states the "
    "reason."),
    Entry("I205", "configuration_taken_over",
          "The site has read hospital.yaml again. The log line names changed settings that need a restart."),
    Entry("I207", "certificate_renewed", "This site received a new certificate with a new key, in place of its "
    "earlier certificate."),
    Entry("I210", "agent_kept_from_patients",
          "The operating system prevents the agent's user account from reading the patients' table."),
    Entry("W256", "agent_may_read_patients",
          "The agent and the trainer run under one user account. The operating system does not prevent the agent from "
          "reading the patients' table. Only the code of the program prevents this.",
          "Run the trainer under its own user account, as the installed packages do. See docs/operator.md."),
    Entry("W260", "gate_may_write_approvals",
          "The user account of the gate process can also write approvals. The operating system does not prevent the "
          "gate from writing approvals. Only the code of the program prevents this.",
          "Run the programs as services, as the installed packages do. See docs/operator.md."),
    Entry("W250", "enrolment_awaits_approval",
          "The federation office has not approved this site yet. No training starts.",
          "Call the federation office and read out the fingerprint that `site-agent identity` shows."),
    Entry("W251", "approval_awaited",
          "Nobody at this hospital has approved the announced plan. No training starts.",
          "Run `site-agent review`. After that, run `site-agent approve`."),
    Entry("W252", "coordinator_unavailable",
          "This site cannot connect to the coordinator. This site tries again by itself. No data is lost.",
          "If the site still cannot connect after some minutes, run `site-agent doctor`."),
    Entry("W253", "enrolment_unavailable",
          "This site cannot connect to the enrolment port of the coordinator. This site tries again by itself.",
          "If the site still cannot connect after some minutes, run `site-agent doctor`. Ask the federation office "
          "whether the enrolment port is open."),
    Entry("W261", "invitation_not_used",
          "The file of the invitation is not the one with which this site enrolled, and cannot be used. This site uses "
          "its earlier certificate.",
          "If the federation office invited this site again, do what the log line's key `remedy` says. Otherwise you "
          "need not do anything."),
    Entry("W254", "trainer_gone",
          "The trainer process ended before its work was finished. A new trainer process starts and continues from "
          "the saved state on disk.",
          "If the trainer ends too early again, check with `journalctl -u site-trainer` whether its memory was too "
          "small."),
    Entry("W255", "clock_differs",
          "The clocks of this computer and the coordinator differ by more than a minute. The programs may then refuse "
          "valid certificates.",
          "To correct the clock, run `timedatectl set-ntp true`, or ask the administrator of the time server."),
    Entry("W259", "coordinator_records_wait",
          "The coordinator has reached the daily limit of bytes that it may add to this site's audit log. This site "
          "will confirm the checkpoints of the coordinator's own audit log later. Training continues. The log line "
          "shows the limit in bytes.",
          "If no study trains all day, ask the federation office why the coordinator's audit log grows so fast."),
    Entry("E280", "configuration_kept",
          "The site read hospital.yaml again and found mistakes. The site still uses the old settings.",
          "Run `site-agent check`, which lists every mistake. Correct the mistakes, then reload the configuration."),
    Entry("I300", "trainer_started", "The trainer process started without network access."),
    Entry("I301", "study_prepared", "The neural network of a run is ready, and this site's table has no errors."),
    Entry("I305", "trainer_kept_from_network", "The operating system blocks all network access of the trainer."),
    Entry("I302", "study_restored", "Training continues from a saved state on disk."),
    Entry("I303", "study_reported", "The trainer has written the report about what this site gained from the run."),
    Entry("I306", "others_weighed", "This site has computed how strongly its model uses the score from the other "
    "hospitals."),
    Entry("I307", "model_awaited", "Under this plan, this site only receives the result. This site now waits for the "
    "result of the other sites."),
    Entry("I308", "model_received",
          "This site received the other hospitals' model. This site sent no data about its patients."),
    Entry("W353", "column_differs",
          "The values of a column differ from those at the other sites, for example because of a wrong unit or "
          "swapped codes. The mistake may also be at the other sites. It is also possible that there is no mistake.",
          "Check the unit and the codes of this column in the contract. `site-agent review` shows the differences."),
    Entry("W350", "trainer_not_isolated",
          "The trainer could not remove its own network access. The trainer opens no network connection, but the "
          "operating system does not prevent such a connection.",
          "Start the trainer as the service site-trainer (PrivateNetwork=yes), or allow user namespaces."),
    Entry("W351", "agent_gone_without_its_answer",
          "The gate process ended, and the trainer could not send its answer to the gate process."),
    Entry("W352", "saved_state_damaged",
          "A saved state on disk is damaged. The trainer uses an older state and repeats rounds.",
          "Check the disk on which the state folder is."),
    Entry("I304", "table_has_warnings",
          "The hospital's table matches its contract, but has findings that a person should check.",
          "Run `site-agent check`."),
    Entry("E281", "renewal_refused",
          "The coordinator refused to renew this site's certificate. The old certificate remains valid until it "
          "expires.",
          "Ask the federation office to check with `pki list` whether this site is still a member."),
)  # fmt: skip
