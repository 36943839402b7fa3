"""Lists every event that the coordinator writes to its log, each with a code and a help text for the operator."""

from __future__ import annotations

from typing import Final

from host.message_catalogue import Entry

_NOTHING: Final = "Nothing."
_OFFICE_LOOKS: Final = (
    "Find out who connects from the address in the log line. If the address belongs to a site, compare `pki list` "
    "with the site's certificate."
)

EVENTS: Final = (
    Entry("I100", "coordinator_listening", "The coordinator's network ports are open. Sites can connect.", _NOTHING),
    Entry("I121", "coordinator_stopped",
          "A person or a service stopped the coordinator. All files of the run and the register of sites remain on "
          "disk.",
          "Run `coordinator start` to continue the run."),
    Entry("I101", "run_announced", "A run of a plan starts. The coordinator announces the run to each site of the "
    "plan when the site connects.", _NOTHING),
    Entry("I102", "run_taken_up", "An interrupted run continues from the files that were saved on disk.", _NOTHING),
    Entry("I103", "run_is_over_already",
          "A plan in coordinator.yaml has already run, so the coordinator does not run this plan again.", _NOTHING),
    Entry("I104", "site_connected", "A site connected, and its certificate was accepted.", _NOTHING),
    Entry("I105", "site_disconnected", "A site disconnected. The site reconnects by itself.", _NOTHING),
    Entry("I106", "site_joined",
          "A site takes part in a run. A person at that site approved exactly the plan of this run.", _NOTHING),
    Entry("I107", "round_closed", "The coordinator has added up the contributions of all sites in a round. The next "
    "round starts.", _NOTHING),
    Entry("I108", "layers_chosen", "After the probe rounds, the coordinator chose the layers of the model that the "
    "sites share.", _NOTHING),
    Entry("I110", "training_ends_early",
          "Training ends early, because the validation loss no longer falls. The run continues with its last "
          "stages.", _NOTHING),
    Entry("I111", "run_paused",
          "A person paused the run. The run finishes its current round before the pause.",
          "To continue the run, use `coordinator resume`."),
    Entry("I112", "run_resumed", "A person resumed the run.", _NOTHING),
    Entry("I113", "site_enrolled", "A site received its certificate.", _NOTHING),
    Entry("I114", "enrolment_awaits_approval",
          "A site requested its certificate. A person at the federation office must approve the request.",
          "Call the site and compare the fingerprint of its identity key. If it is the same, run `pki approve`."),
    Entry("I115", "site_waits_for_a_later_study",
          "A connected site waits for a later run, because it is not in the current run's plan.", _NOTHING),
    Entry("I116", "configuration_taken_over",
          "The coordinator has read coordinator.yaml again. The log line lists the changed settings that take effect "
          "only after a restart.", _NOTHING),
    Entry("I119", "run_over",
          "A run has ended, with or without all of its rounds. The file record.json of the run has the reason and "
          "names the missing sites.",
          "If the run is incomplete and you want to repeat it, give the plan a higher version number."),
    Entry("I120", "end_to_be_told",
          "All studies have ended, but the sites that the log line names were not informed yet. The coordinator waits "
          "for these sites, at most for the time in `stay_seconds`.",
          "Nothing. You may stop the coordinator if the sites that the log line names will not connect again. After a "
          "restart, the coordinator waits again for the sites that were not informed."),
    Entry("I118", "certificate_renewed", "A site received a new certificate with a new key, in place of its earlier "
    "certificate.", _NOTHING),
    Entry("W150", "site_not_listed",
          "A site that the plan does not list has connected. The coordinator disconnected this site.",
          "If the site belongs to the study, add the site to a new version of the plan."),
    Entry("W151", "site_not_admitted",
          "The coordinator did not let a site take part in the run. The site's plan digest, identity or saved state "
          "is wrong.",
          "The key `reason` in the log line shows the cause. Usually the site has another version of the plan, or "
          "another identity key."),
    Entry("W152", "site_declined",
          "A site refused to continue its part in the run. The key `reason` in the log line has a short code for the "
          "cause.",
          "Call the operator of the site. The site's own log explains why the site refused."),
    Entry("W153", "site_revoked",
          "The federation office revoked a site. The coordinator closed the connection of this site at once.",
          "If the revocation was a mistake, invite the site again."),
    Entry("W154", "round_void",
          "An attempt at a round failed. The coordinator discards this attempt, and repeats the round. The log line's "
          "key `missing` lists the sites that were missing at the deadline or left the run. If the list is empty, a "
          "program was restarted and lost its masking keys, or contributions arrived damaged.",
          "If the list is not empty, call the missing sites. Their operators can run `site-agent status` and "
          "`site-agent doctor`. Otherwise you need not do anything."),
    Entry("W155", "run_went_back",
          "A program of the coordinator or of a site was killed. The run repeats the rounds since the last snapshot, "
          "with the same result.", _NOTHING),
    Entry("W156", "peer_refused", "A connection was refused, because it had no accepted certificate.", _OFFICE_LOOKS),
    Entry("W157", "greeting_missed", "A program connected to the coordinator and sent nothing. The coordinator closed "
    "the connection.", _OFFICE_LOOKS),
    Entry("W158", "message_refused",
          "A site sent a message that this version of the coordinator does not allow. The coordinator closed the "
          "site's connection.",
          "Compare the program versions of the coordinator and the site. If the site sends a wrong message again, "
          "call the site's security officer."),
    Entry("W159", "enrolment_refused",
          "A certificate request was refused. The log line states the reason.",
          "If a site sent the request, make a new invitation with `pki invite`."),
    Entry("W160", "renewal_refused",
          "A site's request for a new certificate was refused. The log line states the reason. The site's old "
          "certificate is still valid.",
          "Check with `pki list` whether the site is a member of the federation. The site's operator can run "
          "`site-agent doctor`."),
    Entry("W161", "site_does_not_read",
          "A site did not read the messages that the coordinator sent. The coordinator closed the site's connection. "
          "A site that works correctly reconnects by itself.",
          "If a site stops reading again, check the network connection to the site. Ask the site's operator for the "
          "program version of the site."),
    Entry("W165", "site_records_wait",
          "A site has reached the daily limit of bytes that it may add to the coordinator's audit log. The "
          "coordinator will confirm the checkpoints of the site's own audit log later. Rounds continue. The log line "
          "shows the limit in bytes.",
          "A site that trains all day may need a higher limit. In other cases, ask the site's operator for the "
          "program version of the site."),
    Entry("W162", "site_taken_out",
          "The federation office revoked a site of this run. The plan sets whether the other sites wait for this site "
          "or continue without it.",
          "Run `coordinator status`. The output of this command names the site and shows what you can do."),
    Entry("W163", "site_given_up",
          "A site was missing in three attempts in a row to complete a round. The other sites continue without this "
          "site.",
          "Call the site. When the site is ready, restart the coordinator. After the restart the site can take part "
          "again."),
    Entry("E180", "site_state_lost",
          "The coordinator and a site have no saved state of the run in common. Either the site has lost its saved "
          "state, or the coordinator was restored from an older backup. The site cannot continue the run.",
          "If the coordinator was restored, restore a newer backup of the coordinator, or start a new version of the "
          "plan. Otherwise ask the site to restore its state folder from its newest backup within the time "
          "`return_seconds` of the plan."),
    Entry("E184", "coordinator_state_older",
          "A site has newer rounds of the run than this coordinator, so the coordinator disconnected the site. The "
          "coordinator's state directory has an older state of the run.",
          "Restore the newest state of the coordinator. If this state is in a backup, use `coordinator restore`. "
          "A site sends nothing to a coordinator whose state is older than the site's own state."),
    Entry("E181", "enrolment_failed",
          "The coordinator could not issue a certificate, because the coordinator cannot use its disk or register of "
          "sites.",
          "Run `coordinator doctor`."),
    Entry("E185", "renewal_failed",
          "The coordinator could not renew a certificate, because the coordinator cannot use its disk or register of "
          "sites. The site's old certificate is still valid.",
          "Run `coordinator doctor`."),
    Entry("E182", "stream_failed",
          "The connection of a site ended because of an error in the coordinator or in the network.",
          "Run `coordinator doctor`."),
    Entry("E183", "configuration_kept",
          "The coordinator read coordinator.yaml again and found mistakes. The coordinator still uses the old "
          "settings.",
          "Run `coordinator check`, which lists every mistake. Correct the mistakes, then reload the configuration."),
    Entry("E187", "site_log_refused",
          "A site's audit log does not continue after the last record that the coordinator cosigned. The coordinator "
          "closed the site's connection.",
          "Call the site's security officer. If the site's audit log was lost, a person at the site must run "
          "`site-agent audit restart`."),
    Entry("E191", "coordinator_log_refused",
          "This coordinator's own audit log lacks or contradicts records that a site has cosigned. Probably somebody "
          "copied an older state folder back. The coordinator closed the site's connection.",
          "If you have a backup, move the state folder to another place, and restore the newest backup with "
          "`coordinator restore`. Otherwise call the security officer, who starts a new log with "
          "`coordinator audit restart`."),
    Entry("E188", "authority_ends_soon",
          "The coordinator's certificate must be renewed. A new certificate would not be valid for longer, because "
          "the certificate of the authority that issues it expires too soon.",
          "Get the root key from its safe place, then run `pki renew` with `--authority`."),
    Entry("E189", "certificate_unreadable",
          "The coordinator could not read the files of its own certificate or key. The coordinator used the "
          "certificate and key that it had read before.",
          "Run `pki doctor`."),
)  # fmt: skip
