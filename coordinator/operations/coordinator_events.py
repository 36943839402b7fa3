"""Every event that the coordinator logs, with its identifier and help."""

from __future__ import annotations

from typing import Final

from host.message_catalogue import Entry

_NOTHING: Final = "Nothing."
_OFFICE_LOOKS: Final = "Look who calls from there; if it is a site, compare `pki list` with what it has."

EVENTS: Final = (
    Entry("I100", "coordinator_listening", "The ports are open; sites may call.", _NOTHING),
    Entry("I101", "run_announced", "A run begins; the sites of its plan are told as they connect.", _NOTHING),
    Entry("I102", "run_taken_up", "A run that was interrupted goes on from its journal and snapshots.", _NOTHING),
    Entry("I103", "run_is_over_already", "A plan of the configuration was run before; it is not run again.", _NOTHING),
    Entry("I104", "site_connected", "A site's stream is open and its certificate accepted.", _NOTHING),
    Entry("I105", "site_disconnected", "A site's stream has ended; it calls again by itself.", _NOTHING),
    Entry("I106", "site_joined", "A site takes part: a person there has approved exactly this plan.", _NOTHING),
    Entry("I107", "round_closed", "All contributions of a round were summed; the next one begins.", _NOTHING),
    Entry("I108", "layers_chosen", "The probe has decided which layers are shared from now on.", _NOTHING),
    Entry("I109", "intervals_chosen", "FedLAMA has decided which layers are summed less often.", _NOTHING),
    Entry("I110", "training_ends_early", "The validation loss has stopped falling; the last stages follow.", _NOTHING),
    Entry("I111", "run_paused", "A person has paused the run; the round under way still closes.", "coordinator resume"),
    Entry("I112", "run_resumed", "A person lets the run go on.", _NOTHING),
    Entry("I113", "site_enrolled", "A site has got its certificate.", _NOTHING),
    Entry(
        "I114",
        "enrolment_awaits_approval",
        "A site has asked for its certificate and waits for a person.",
        "Compare the fingerprint by telephone, then `pki approve`.",
    ),
    Entry("I115", "site_waits_for_a_later_study", "A site is not in this run's plan, but in one that waits.", _NOTHING),
    Entry(
        "I117",
        "maintenance_announced",
        "A site tells in which window it may be away, or that there is none; nobody counts it as lost then.",
        _NOTHING,
    ),
    Entry("I116", "configuration_taken_over", "coordinator.yaml was read again; keys that wait are named.", _NOTHING),
    Entry(
        "I119",
        "run_over",
        "A run has ended, complete or not; record.json has the reason and who was missing.",
        "If it is not complete and should be made again, raise the plan's version.",
    ),
    Entry(
        "I120",
        "end_to_be_told",
        "All studies are over, and these sites have not heard so; it stays for them, `stay_seconds` at most.",
        "Nothing; end it if nobody will call any more. Started again, it tells those who have not heard yet.",
    ),
    Entry("I118", "certificate_renewed", "A site has got its next certificate, with a new key.", _NOTHING),
    Entry(
        "W150",
        "site_not_listed",
        "A member of the federation called that the plan does not list. It is told to go.",
        "If it belongs to the study, make a new version of the plan that lists it.",
    ),
    Entry(
        "W151",
        "site_not_admitted",
        "A site's join was refused: its digest, identity or state is not what the run needs.",
        "Read `reason`; most often the site has another version or another identity key.",
    ),
    Entry(
        "W152",
        "site_declined",
        "A site said that it does not go on; `reason` is from the closed list.",
        "Call the site: its own log has the explanation.",
    ),
    Entry(
        "W153",
        "site_revoked",
        "The register no longer accepts a site; its stream was ended at once.",
        "Nothing, if you meant it; otherwise invite it again.",
    ),
    Entry(
        "W154",
        "round_void",
        "Sites were missing at a round's deadline; the attempt counts for nothing and is made again.",
        "Ask the missing sites; a person there runs `site-agent status` and `doctor`.",
    ),
    Entry(
        "W155",
        "run_went_back",
        "A program had died; rounds from there on are made again, to the same numbers.",
        _NOTHING,
    ),
    Entry("W156", "peer_refused", "Somebody called without an accepted certificate and was sent away.", _OFFICE_LOOKS),
    Entry("W157", "greeting_missed", "A stream was opened and nothing was said on it; it was ended.", _OFFICE_LOOKS),
    Entry(
        "W158",
        "message_refused",
        "A site sent what no honest agent of this version sends; its stream was ended.",
        "Compare versions; if it happens again, ask the site's security officer.",
    ),
    Entry(
        "W159",
        "enrolment_refused",
        "A request for a certificate was refused; the reason says why.",
        "If a site is behind it, make a new invitation: `pki invite`.",
    ),
    Entry(
        "W160",
        "renewal_refused",
        "A site's request for a new certificate was refused; the reason says why. The old one still counts.",
        "If the site is a member, look at it with `pki list`, then ask its operator to run `site-agent doctor`.",
    ),
    Entry(
        "W161",
        "site_does_not_read",
        "A site took nothing of what was sent to it, and its stream was cut; an honest site calls again by itself.",
        "If it happens again, look at the line to that site, or ask it which program it runs.",
    ),
    Entry(
        "W162",
        "site_taken_out",
        "The federation office has revoked a site of this run; the others go on without it, or wait, as the plan says.",
        "`coordinator status` says which, and what can be done.",
    ),
    Entry(
        "W164",
        "round_rolled_back",
        "Too few sites accepted the shared parameters; the run returned to those that were accepted last.",
        "Read `coordinator status`. After a second rollback to the same parameters the training ends.",
    ),
    Entry(
        "W163",
        "site_given_up",
        "A site was missing in three attempts in a row; the others go on, and nothing is asked of it any more.",
        "Call the site; then start the coordinator anew, and it comes in again.",
    ),
    Entry(
        "E180",
        "site_state_lost",
        "A site came back without the state of a run that it was in; it cannot go on.",
        "It brings its state folder back from a backup before `return_seconds` are over.",
    ),
    Entry(
        "E184",
        "coordinator_state_older",
        "A site was sent away that holds more of the run: the state directory here is an older copy.",
        "Bring the newest state back, with `coordinator restore` if it is a backup; no site masks for an older one.",
    ),
    Entry(
        "E181",
        "enrolment_failed",
        "A certificate could not be given because of this side: the disk or the register.",
        "Run `coordinator doctor`.",
    ),
    Entry(
        "E185",
        "renewal_failed",
        "A certificate could not be renewed because of this side: the disk or the register. The old one still counts.",
        "Run `coordinator doctor`.",
    ),
    Entry("E182", "stream_failed", "A stream ended by a failure of this program or its line.", "Run `doctor`."),
    Entry(
        "E183",
        "configuration_kept",
        "coordinator.yaml was to be read again and is wrong; what held before holds on.",
        "Correct it (`coordinator check` names every mistake) and reload again.",
    ),
    Entry(
        "E187",
        "site_log_refused",
        "A site's audit log does not go on from where it was cosigned; its stream was ended.",
        "Call the site's security officer; after a loss a person there runs `site-agent audit begin-anew`.",
    ),
    Entry(
        "E188",
        "authority_ends_soon",
        "The coordinator's certificate is due, and the issuing certificate above it ends no later.",
        "Fetch the root key and run `pki renew` with `--authority`.",
    ),
    Entry(
        "E190",
        "foreign_name_refused",
        "The authority that one hospital has brought issued a certificate in another site's name; it was refused.",
        "Call that hospital's security officer; `pki own-authority remove` ends what its authority may say.",
    ),
    Entry(
        "E189",
        "certificate_unreadable",
        "The coordinator's certificate or key could not be read at a handshake; the one before it was shown.",
        "Run `pki doctor`.",
    ),
)
