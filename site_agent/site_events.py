"""Lists every event that a site's processes log, with its identifier and help."""

from __future__ import annotations

from typing import Final

from host.message_catalogue import Entry

EVENTS: Final = (
    Entry("I200", "enrolled", "This site received its certificate."),
    Entry("I201", "run_joined", "This site takes part in a run that a person at this hospital approved."),
    Entry("I202", "contribution_released",
          "This site sent a contribution. The audit log has the hash of the contribution."),
    Entry("I203", "run_finished", "A run ended. The model and the report are in the state folder."),
    Entry("I211", "sweep_decided",
          "All alternatives of a sweep are complete. The run that the key `run` names has the lowest mean validation "
          "loss over all sites.",
          "If the person responsible at this hospital agrees, run `site-agent adopt` with --run and the name of the "
          "run."),
    Entry("I204", "coordinator_parted", "The coordinator closed the stream. The log line states the reason."),
    Entry("I205", "configuration_taken_over",
          "hospital.yaml was read again. The log line names the keys that need a restart."),
    Entry("I206", "hours_awaited",
          "The current time is outside the hours that the policy allows. This site connects when the allowed hours "
          "start.",
          "No action is needed. To change the hours, edit `hours` in the policy."),
    Entry("I207", "certificate_renewed", "This site received its next certificate, with a new key."),
    Entry("I210", "agent_kept_from_patients",
          "The operating system prevents the agent's user account from reading the table."),
    Entry("W256", "agent_may_read_patients",
          "The agent and the trainer run under one user account. The operating system does not prevent the agent from "
          "reading the table. Only the program's own code prevents this.",
          "Run the trainer under its own user account, as the packages do. See docs/operator.md."),
    Entry("W260", "gate_may_write_approvals",
          "The user account of the gate process can also write approvals. The operating system does not prevent the "
          "gate from writing approvals. Only the program's own code prevents this.",
          "Run the programs as services, as the packages do. See docs/operator.md."),
    Entry("W250", "enrolment_awaits_approval",
          "The federation office has not approved this site yet. No training starts.",
          "Read the fingerprint to the office. `site-agent identity` shows the fingerprint."),
    Entry("W251", "approval_awaited",
          "Nobody at this hospital has approved the announced plan. No training starts.",
          "Run `site-agent review`. After that, run `site-agent approve`."),
    Entry("W252", "coordinator_unavailable",
          "The site cannot reach the coordinator. The site retries by itself. No data is lost.",
          "If the site still cannot connect after some minutes, run `site-agent doctor`."),
    Entry("W253", "enrolment_unavailable",
          "The site cannot reach the enrolment port. The site retries by itself.",
          "If the site still cannot connect after some minutes, run `site-agent doctor`. Ask the office whether "
          "enrolment is open."),
    Entry("W254", "trainer_gone",
          "The trainer process ended before its work was finished. A new trainer process starts and continues from "
          "the state on disk.",
          "If this happens again, check with `journalctl -u site-trainer` whether memory was too small."),
    Entry("W255", "clock_differs",
          "The clocks of this computer and the coordinator differ by more than a minute. Valid certificates may be "
          "refused.",
          "Run `timedatectl set-ntp true`, or ask the administrator of the time server."),
    Entry("W258", "run_rolled_back",
          "Too few sites accepted the shared parameters. The run returned to the last accepted parameters.",
          "If this happens again, compare labels, units and software with the other hospitals."),
    Entry("W259", "coordinator_records_wait",
          "The coordinator has reached the daily limit of bytes that it may add to this site's audit log. This site "
          "confirms the checkpoints of the coordinator's own audit log later. Training continues. The log line has "
          "the limit.",
          "If no study trains day and night, ask the federation office why the coordinator's audit log grows so fast."),
    Entry("W257", "own_certificate_ends_soon",
          "The hospital's own authority issued this site's certificate, which expires within 30 days. The program "
          "cannot renew this certificate by itself.",
          "Run `site-agent request-certificate`. The hospital's authority then issues the certificate. After that, "
          "run `site-agent install-certificate`."),
    Entry("E280", "configuration_kept",
          "hospital.yaml was read again and has mistakes. The site still uses the old settings.",
          "Run `site-agent check`, which lists every mistake. Correct the mistakes and reload."),
    Entry("I300", "trainer_started", "The trainer process started without network access."),
    Entry("I301", "study_prepared", "The neural network of a run is ready, and this site's table has no errors."),
    Entry("I305", "trainer_kept_from_network", "The operating system blocks all network access of the trainer."),
    Entry("I302", "study_restored", "Training continues from a state on disk."),
    Entry("I303", "study_reported", "The report on this site's gain was written."),
    Entry("I306", "others_weighed", "This site computed how much weight the other hospitals' score has in its model."),
    Entry("I307", "model_awaited", "This site only receives. This site waits for the result of the other sites."),
    Entry("I308", "model_received",
          "This site received the other hospitals' model. This site sent no data about its patients."),
    Entry("I309", "helpers_joined",
          "The trainer has several processes, started by torchrun. Each process computes a part of each batch."),
    Entry("W353", "column_differs",
          "The values of a column differ from those at the other sites, for example because of a wrong unit or "
          "swapped codes. The mistake may also be at the other sites, or there may be no mistake.",
          "Check the column's unit and codes in the contract. `site-agent review` shows the differences."),
    Entry("W350", "trainer_not_isolated",
          "The trainer could not remove its own network access. The trainer opens no network connection, but the "
          "operating system does not prevent such a connection.",
          "Run the trainer with its systemd unit (PrivateNetwork=yes), or allow user namespaces. If torchrun starts "
          "the trainer on several computers, this warning always appears."),
    Entry("W351", "agent_gone_without_its_answer",
          "The agent process ended before the trainer had finished its work for the agent."),
    Entry("W352", "saved_state_damaged",
          "A saved state on disk is damaged. The trainer uses an older state and repeats rounds.",
          "Check the disk of the state folder."),
    Entry("I304", "table_has_warnings",
          "The table matches its contract, but has findings that a person should check.",
          "Run `site-agent check`."),
    Entry("E281", "renewal_refused",
          "The coordinator does not renew this site's certificate. The old certificate is valid until it expires.",
          "Ask the federation office to check with `pki list` whether this site is still a member."),
)  # fmt: skip
