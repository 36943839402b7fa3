"""Builds a method's training procedure from the ingredients of the method."""

from __future__ import annotations

from typing import assert_never

from protos.plan.ingredients import (
    ColumnByColumn,
    ControlVariates,
    FederatedOnly,
    InnerProblem,
    Method,
    Mixture,
    PersonalCopy,
    PrivateFirst,
    Together,
)
from site_agent.trainer.training.bridge import FlatNetwork
from site_agent.trainer.training.column_training import ColumnTraining
from site_agent.trainer.training.control import ControlledTraining
from site_agent.trainer.training.moreau import MoreauTraining
from site_agent.trainer.training.personal import CopyTraining, MixtureTraining
from site_agent.trainer.training.procedure import Procedure
from site_agent.trainer.training.shared_model import ApartTraining, TogetherTraining
from site_agent.trainer.training.training_model import Recipe


def build_procedure(method: Method, flat: FlatNetwork, recipe: Recipe) -> Procedure:
    """Build a method's training procedure. A round sends the update of the network `flat`."""
    procedure = method.procedure
    match procedure:
        case Together():
            return TogetherTraining(flat, recipe, method.penalties)
        case PrivateFirst(epochs=epochs):
            return ApartTraining(flat, recipe, epochs, method.penalties)
        case FederatedOnly():
            return ApartTraining(flat, recipe, 0, method.penalties)
        case PersonalCopy(strength=strength):
            return CopyTraining(TogetherTraining(flat, recipe, method.penalties), recipe, strength)
        case Mixture(start=start, rate=rate):
            return MixtureTraining(TogetherTraining(flat, recipe, method.penalties), recipe, start, rate)
        case InnerProblem():
            return MoreauTraining(flat, recipe, procedure)
        case ControlVariates():
            return ControlledTraining(flat, recipe)
        case ColumnByColumn():
            return ColumnTraining(flat, recipe)
        case _:
            assert_never(procedure)
