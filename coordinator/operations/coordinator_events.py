"""Lists every event that the coordinator logs, with its identifier and help."""

from __future__ import annotations

from typing import Final

from host.message_catalogue import Entry

_NOTHING: Final = "Nothing."
_OFFICE_LOOKS: Final = (
    "Find out who connects from the address in the log line. If the address belongs to a site, compare `pki list` with "
    "the site's certificate."
)

EVENTS: Final = (
    Entry("I100", "coordinator_listening", "The coordinator's ports are open. Sites can connect.", _NOTHING),
    Entry("I121", "coordinator_stopped",
          "A person or a service stopped the coordinator. The journal, the snapshots and the register of sites are "
          "kept.",
          "Run `coordinator start` to continue the run."),
    Entry("I101", "run_announced", "A run starts. Each site of the plan is informed when the site connects.", _NOTHING),
    Entry("I102", "run_taken_up", "An interrupted run continues from its journal and snapshots.", _NOTHING),
    Entry("I103", "run_is_over_already",
          "A plan of the configuration has already run, so the plan does not run again.", _NOTHING),
    Entry("I104", "site_connected", "A site connected, and its certificate was accepted.", _NOTHING),
    Entry("I105", "site_disconnected", "A site disconnected. The site reconnects by itself.", _NOTHING),
    Entry("I106", "site_joined",
          "A site takes part in a run. A person at that site approved exactly the plan of this run.", _NOTHING),
    Entry("I107", "round_closed", "All contributions of a round were summed. The next round starts.", _NOTHING),
    Entry("I108", "layers_chosen", "After the probe rounds, the layers that the sites share were chosen.", _NOTHING),
    Entry("I109", "intervals_chosen", "FedLAMA chose layers that are summed less often than the others.", _NOTHING),
    Entry("I110", "training_ends_early",
          "The validation loss stopped falling. The run continues with its last stages.", _NOTHING),
    Entry("I111", "run_paused",
          "A person paused the run. The current round still finishes.",
          "Run `coordinator resume` to continue."),
    Entry("I112", "run_resumed", "A person resumed the run.", _NOTHING),
    Entry("I113", "site_enrolled", "A site received its certificate.", _NOTHING),
    Entry("I114", "enrolment_awaits_approval",
          "A site requested its certificate. A person must approve the request.",
          "Compare the fingerprint with the site by telephone. After that, run `pki approve`."),
    Entry("I115", "site_waits_for_a_later_study",
          "A connected site is not in this run's plan, but in the plan of a later run.", _NOTHING),
    Entry("I117", "maintenance_announced",
          "A site announced a maintenance window, in which it may be absent, or cancelled it. The coordinator does not "
          "treat the site as lost in an announced time.", _NOTHING),
    Entry("I116", "configuration_taken_over",
          "coordinator.yaml was read again. The log line names the keys that need a restart.", _NOTHING),
    Entry("I119", "run_over",
          "A run ended, either complete or incomplete. The file record.json has the reason and the missing sites.",
          "If the run is not complete and you want to repeat it, raise the plan's version."),
    Entry("I122", "sweep_decided",
          "All alternatives of a sweep are complete. The run that the key `run` names has the lowest mean validation "
          "loss over all sites.",
          "Send the name of this run to the sites. Each site can then adopt the model of the run."),
    Entry("I120", "end_to_be_told",
          "All studies ended, but the sites in the log line do not have the result yet. The coordinator waits for "
          "these sites for at most `stay_seconds`.",
          "Nothing. You may stop the coordinator if the sites in the log line will not connect again. After a restart "
          "the coordinator waits for these sites again."),
    Entry("I118", "certificate_renewed", "A site received its next certificate, with a new key.", _NOTHING),
    Entry("W150", "site_not_listed",
          "A site that is not in the plan connected. The site was disconnected.",
          "If the site belongs to the study, add the site to a new version of the plan."),
    Entry("W151", "site_not_admitted",
          "A site was not admitted to the run. The site has the wrong plan digest, identity or state.",
          "Read the key `reason` in the log line. Usually the site has a different plan version or a different "
          "identity key."),
    Entry("W152", "site_declined",
          "A site refused to continue. The key `reason` has a short code for the cause.",
          "Call the site. The site's own log has the explanation."),
    Entry("W153", "site_revoked",
          "A site was revoked. The site's stream was closed at once.",
          "If the revocation was a mistake, invite the site again."),
    Entry("W154", "round_void",
          "Sites were missing at the deadline of a round. The coordinator does not use this attempt, and repeats the "
          "round.",
          "Call the missing sites. People at these sites can run `site-agent status` and `site-agent doctor`."),
    Entry("W155", "run_went_back",
          "A program was killed. The rounds since the last snapshot are repeated, with the same result.", _NOTHING),
    Entry("W156", "peer_refused", "A connection without an accepted certificate was refused.", _OFFICE_LOOKS),
    Entry("W157", "greeting_missed", "A peer opened a stream and sent nothing. The stream was closed.", _OFFICE_LOOKS),
    Entry("W158", "message_refused",
          "A site sent a message that violates the protocol of this version. The site's stream was closed.",
          "Compare the versions of both programs. If the site sends such a message again, call the site's security "
          "officer."),
    Entry("W159", "enrolment_refused",
          "A certificate request was refused. The log line states the reason.",
          "If a site sent the request, make a new invitation with `pki invite`."),
    Entry("W160", "renewal_refused",
          "A site's request for a new certificate was refused. The log line states the reason. The site's old "
          "certificate is still valid.",
          "Check with `pki list` whether the site is a member. The site's operator can run `site-agent doctor`."),
    Entry("W161", "site_does_not_read",
          "A site did not read the messages that the coordinator sent. The site's stream was closed. A site without a "
          "defect reconnects by itself.",
          "If this happens again, check the connection to the site. Ask the site's operator which version of the "
          "program runs at the site."),
    Entry("W165", "site_records_wait",
          "A site has reached the daily limit of bytes that it may add to the coordinator's audit log. The "
          "coordinator confirms "
          "the checkpoints of the site's own audit log later. Rounds continue. The log line has the limit.",
          "A site that trains all day may need a higher limit. Otherwise ask the site's operator which version of the "
          "program runs at the site."),
    Entry("W162", "site_taken_out",
          "The federation office revoked a site of this run. Depending on the plan, the other sites continue without "
          "this site or wait.",
          "Run `coordinator status`. The output names the site and what you can do."),
    Entry("W164", "round_rolled_back",
          "Too few sites accepted the shared parameters. The run returned to the last accepted parameters.",
          "Run `coordinator status`. If the run returns too many times in a row, the training ends. "
          "The output shows the limit."),
    Entry("W163", "site_given_up",
          "A site was missing in three attempts in a row. The other sites continue without this site.",
          "Call the site. After that, restart the coordinator. The site can then take part again."),
    Entry("E180", "site_state_lost",
          "A site reconnected, but no longer has its saved state of the run. The site cannot continue.",
          "Ask the site to restore its state folder from a backup before the time `return_seconds` has passed."),
    Entry("E184", "coordinator_state_older",
          "A site has newer rounds than this coordinator, so the site was disconnected. The coordinator's state "
          "directory has an older state.",
          "Restore the newest state. Use `coordinator restore` if the newest state is a backup. Sites send nothing to "
          "a coordinator with an older state."),
    Entry("E181", "enrolment_failed",
          "The coordinator could not issue a certificate, because the coordinator cannot use its disk or register of "
          "sites.",
          "Run `coordinator doctor`."),
    Entry("E185", "renewal_failed",
          "The coordinator could not renew a certificate, because the coordinator cannot use its disk or register of "
          "sites. The site's old certificate is still valid.",
          "Run `coordinator doctor`."),
    Entry("E182", "stream_failed",
          "The stream of a site failed because of a fault in the coordinator or in the connection.",
          "Run `coordinator doctor`."),
    Entry("E183", "configuration_kept",
          "coordinator.yaml was read again and has mistakes. The coordinator still uses the old settings.",
          "Run `coordinator check`, which lists every mistake. Correct the mistakes and reload."),
    Entry("E187", "site_log_refused",
          "A site's audit log does not continue after the last record that the coordinator cosigned. The site's stream "
          "was closed.",
          "Call the site's security officer. If the site's audit log was lost, a person at the site runs `site-agent "
          "audit restart`."),
    Entry("E188", "authority_ends_soon",
          "The coordinator's certificate must be renewed. A new certificate would not be valid for longer, because the "
          "issuing certificate of the authority expires too soon.",
          "Fetch the root key and run `pki renew` with `--authority`."),
    Entry("E190", "foreign_name_refused",
          "A hospital's own certificate authority issued a certificate for another site. The certificate was refused.",
          "Call that hospital's security officer. `pki own-authority remove` ends the trust in the hospital's "
          "authority."),
    Entry("E189", "certificate_unreadable",
          "The coordinator could not read its certificate or key for a connection. The coordinator used the previous "
          "certificate or key.",
          "Run `pki doctor`."),
)  # fmt: skip
