"""Defines failures of training whose reason is sent to the coordinator. No training library is loaded.

The error texts stay at the site. Only a reason from the closed list is sent.
"""

from __future__ import annotations

from typing import Final

from protos.errors import ConfigurationError, OperatorError, RefusedError

_NOTHING_TRAINED: Final = "Nothing was trained and nothing was sent."
START_AGAIN: Final = (
    "Then start the site's programs again: `site-agent join`, or `systemctl start site-trainer site-gate site-agent`."
)


def unfit(*, what: str, remedy: str) -> ConfigurationError:
    """Return the error message for a plan, a contract or a network that does not fit this site."""
    return ConfigurationError(what=what, consequence=_NOTHING_TRAINED, remedy=remedy)


class NetworkDiffers(ConfigurationError):
    """This site would send other tensors or numbers than persons approved here."""

    code = "E016"

    def __init__(self) -> None:
        super().__init__(
            what="This site would send other tensors or numbers than were approved here.",
            consequence=_NOTHING_TRAINED,
            remedy="Install the same version of global-layers everywhere.",
        )


class ModuleDiffers(ConfigurationError):
    """The hospital's own module lacks a federated tensor, or has the tensor in another shape."""

    code = "E016"

    def __init__(self, what: str, remedy: str, *, tensor: str) -> None:
        """Store the texts. `tensor` is the tensor's name in the plan, which is sent to the federation."""
        super().__init__(what=what, consequence=_NOTHING_TRAINED, remedy=remedy)
        self.tensor = tensor


class StateLost(ConfigurationError):
    """The saved state from which this site should continue is neither in memory nor on disk."""

    code = "E017"

    def __init__(self, number: int) -> None:
        super().__init__(
            what=f"This site cannot continue with round {number + 1}: its saved state is missing or damaged.",
            consequence=(
                "Nothing was trained, because without its saved state this site would start again in the middle of the "
                "study."
            ),
            remedy="Restore this site's whole state folder from a backup, or inform the federation office.",
        )


class TooFewRows(RefusedError):
    """The plan or this hospital's policy requires more training rows than this site has."""

    def __init__(self, fewest: int) -> None:
        super().__init__(
            what=(
                f"This site has fewer than {fewest} training rows. The plan and this site's policy require at least "
                f"{fewest}."
            ),
            consequence=_NOTHING_TRAINED,
            remedy=(
                "Add rows to the table, or lower smallest_training_rows in hospital.yaml or fewest_rows in the plan."
            ),
        )


class MayNotSend(OperatorError):
    """This site's own rows do not allow an answer in a round. The gate sends a void, and only this site knows why."""

    code = "E034"

    def __init__(self, what: str) -> None:
        super().__init__(
            what=f"This site sends no numbers: {what}.",
            consequence="Random numbers took their place. The study ends for all sites, which do not learn the reason.",
            remedy="The study needs another plan. Before you tell the office, read docs/privacy.md, Voids.",
        )


class TrainingDiverged(OperatorError):
    """Training ended in a model whose predictions are infinite or undefined."""

    code = "E018"

    def __init__(self) -> None:
        super().__init__(
            what="Training diverged: every model returns infinite or undefined predictions.",
            consequence="No model of this run was kept. The audit log lists what this site sent in earlier rounds.",
            remedy=(
                "Agree with the other sites on a plan with a smaller learning_rate, and check the table for extreme "
                "values."
            ),
        )
