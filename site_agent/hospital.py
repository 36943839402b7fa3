"""Reads and checks hospital.yaml. A site's gate process and trainer read this file. The agent never reads it.

Protections have no default, and exceptions from them are off unless the file has them. Unknown keys are refused, and
all mistakes are reported at once. Paths are made absolute.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final, Literal, TypeAlias

from pydantic import AfterValidator, Field

from protos.plan.documents import Address, Document, PathText, did_you_mean, read_document
from protos.plan.methods import METHOD_NAMES
from protos.plan.patient_privacy import LARGEST_DELTA, LARGEST_EPSILON, SMALLEST_DELTA
from protos.plan.plan_head import Name


def _known(name: str) -> str:
    if name not in METHOD_NAMES:
        raise ValueError(f"there is no method {name[:80]}; {did_you_mean(name, METHOD_NAMES)}")
    return name


# Many commands read this file while the site's programs run, and most of them start nothing.
_CONSEQUENCE: Final = "The command did nothing, and nothing was sent. A running program keeps its settings."
MethodName: TypeAlias = Annotated[str, AfterValidator(_known)]


Tier: TypeAlias = Literal["receiving", "statistics", "evaluation", "training"]


class PrivacyLimits(Document):
    """The largest privacy budget (epsilon) that this hospital spends on its patients. See docs/privacy.md.

    Attributes:
        largest_epsilon_per_study: over all versions and runs of one study.
        largest_epsilon_per_year: over all studies in any 365 days.
        delta: at which both are computed.
    """

    largest_epsilon_per_study: float = Field(gt=0, le=LARGEST_EPSILON)
    largest_epsilon_per_year: float = Field(gt=0, le=LARGEST_EPSILON)
    delta: float = Field(ge=SMALLEST_DELTA, le=LARGEST_DELTA)


class Policy(Document):
    """The actions that this hospital allows to every plan. A setting that loosens a limit is off by default.

    The keys with a default add a limit if they are written. Without them the approved plan decides.

    Attributes:
        tier: the most that this site does: receive the result of others, send sums of declared columns, measure
            models of others, or train.
        methods: names of allowed methods.
        secure_aggregation: `required` refuses every plan without masking.
        smallest_sites: the fewest contributors in a sum with this site.
        largest_rounds: most rounds of one run.
        largest_megabytes: the most that this site may send in one run, in units of 1,000,000 bytes.
        largest_clipping_range: the largest magnitude of an update that this site may send.
        largest_clipped_share: the largest share of an update's values that a plan may let be clipped. Sums of clipped
            values with several ranges show values of single sites.
        starting_file: `allow` permits plans whose network starts from a file. Its author chooses the values, and some
            values make a sum reveal single patients.
        exact_rows: `allow` permits plans with weights by exact counts of training rows. Between two studies this
            site's count then changes by smallest_cell or more, or not at all.
        smallest_training_rows: with fewer rows this site does not train. The trainer, which has the rows, counts
            them.
        smallest_cell: a sum of statistics without noise never has fewer of this site's rows.
        approvers: how many different persons must approve a plan.
        privacy: limits of epsilon. With it this site refuses plans that send numbers without noise; without it this
            site refuses plans that promise privacy.
    """

    tier: Tier = "training"
    methods: tuple[MethodName, ...] = Field(min_length=1)
    secure_aggregation: Literal["required", "not-required"]
    smallest_sites: int = Field(ge=1)
    largest_rounds: int = Field(ge=1)
    largest_megabytes: float = Field(gt=0)
    largest_clipping_range: float = Field(gt=0)
    largest_clipped_share: float = Field(default=0.01, ge=0, le=1)
    starting_file: Literal["refuse", "allow"] = "refuse"
    exact_rows: Literal["refuse", "allow"] = "refuse"
    smallest_training_rows: int = Field(default=1, ge=1)
    smallest_cell: int = Field(default=10, ge=1)
    approvers: int = Field(default=1, ge=1, le=8)
    privacy: PrivacyLimits | None = None


class Split(Document):
    """The settings that divide the table's rows into training, validation and test, each with its share of outcomes.

    Attributes:
        seed: of the shuffle.
        test_share: of all rows (of all patients, if the contract names a patient column).
        validation_share: of the rest.
    """

    seed: int = Field(ge=0, lt=1 << 32)
    test_share: float = Field(default=0.33, gt=0, lt=1)
    validation_share: float = Field(default=0.1, gt=0, lt=1)


class Data(Document):
    """The hospital's table, the contract of the table, and the division of the rows.

    `unaccepted_warnings` sets whether a table that nobody has checked, or with warnings that nobody has accepted, stops
    training, or is only logged. `prevalence` is the share of patients with the outcome, for a site that only receives
    and has no outcomes to count; None takes the other sites' share.
    """

    table: PathText
    contract: PathText
    split: Split
    unaccepted_warnings: Literal["stop", "tell"] = "stop"
    prevalence: float | None = Field(default=None, gt=0, lt=1)


class Training(Document):
    """The settings for computing at this site. Results repeat exactly only with the same number of threads.

    `draws` is published in experiments with public data only: anybody with the plan can then compute this site's
    private starts, batches and dropout. `device` is where networks are trained: on the processor, or on the first
    graphics card that PyTorch finds.
    The last bits of the result differ between the two devices.
    """

    threads: int = Field(default=1, ge=1, le=256)
    device: Literal["cpu", "cuda"] = "cpu"
    draws: Literal["secret", "published"] = "secret"
    siloed_baseline: bool = True
    placebo_baseline: bool = False
    simple_models: bool = True
    user_module: PathText | None = None


class Hospital(Document):
    """The configuration of one site. Paths are relative to the file hospital.yaml.

    Attributes:
        site: the name that the certificate proves.
        coordinator: host:port; by default from the invitation.
        proxy: host:port of the HTTP proxy through which the agent reaches the coordinator; by default none. The
            environment's variables are not read.
        invitation: the file with which a site without a certificate enrols.
        state: keys, approvals, audit log, models and reports; created with mode 0700.
        gate_socket: the gate's socket for an agent that runs as a service; without it `site-agent join` starts the
            agent itself.
        trainer_socket: the socket of a trainer that runs as a service; without it `site-agent join` starts the
            trainer itself.
        starting_files: the folder of the files that plans name under start.
    """

    site: Name
    coordinator: Address | None = None
    proxy: Address | None = None
    invitation: PathText | None = None
    state: PathText
    policy: Policy
    data: Data
    training: Training = Training()
    gate_socket: PathText | None = None
    trainer_socket: PathText | None = None
    starting_files: PathText = "starting-files"

    @property
    def state_path(self) -> Path:
        return Path(self.state)

    @property
    def scratch_path(self) -> Path:
        """The folder for the temporary files in which the trainer prepares images. These files have no names."""
        return self.state_path / "saves"


def read_hospital(path: Path) -> Hospital:
    """Read hospital.yaml and make its paths absolute.

    Raises:
        ConfigurationError: the file is wrong. The error lists every mistake.
    """
    hospital = read_document(path, Hospital, consequence=_CONSEQUENCE)
    base = path.resolve().parent
    data = hospital.data.model_copy(
        update={"table": str(base / hospital.data.table), "contract": str(base / hospital.data.contract)}
    )
    user_module = hospital.training.user_module
    training = hospital.training.model_copy(update={"user_module": str(base / user_module) if user_module else None})
    return hospital.model_copy(
        update={
            "data": data,
            "training": training,
            "starting_files": str(base / hospital.starting_files),
            "state": str(base / hospital.state),
            "invitation": str(base / hospital.invitation) if hospital.invitation else None,
            "gate_socket": str(base / hospital.gate_socket) if hospital.gate_socket else None,
            "trainer_socket": str(base / hospital.trainer_socket) if hospital.trainer_socket else None,
        }
    )
