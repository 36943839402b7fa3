"""Reads the preprocessing that was saved with a model. A text that does not fit its own contract is refused."""

from __future__ import annotations

from pydantic import ValidationError

from protos.errors import ConfigurationError
from site_agent.trainer.data.contract import RegressionTarget
from site_agent.trainer.data.preprocessing import Preprocessing


def preprocessing_of(text: str) -> Preprocessing:
    """Read the preprocessing of a model from its JSON text.

    Raises:
        ConfigurationError: the text is damaged or of another version.
    """
    try:
        loaded = Preprocessing.model_validate_json(text)
    except ValidationError:
        loaded = None  # pydantic's error quotes its input, so it is not chained
    if loaded is None or not _fits(loaded):
        raise ConfigurationError(
            what=(
                "The stored rules that convert the table for this model are damaged or from another version of this "
                "program."
            ),
            consequence="Nothing was predicted or trained, and nothing was sent.",
            remedy="Use another saved model, or train again.",
        )
    return loaded


def _fits(loaded: Preprocessing) -> bool:
    """Return whether a saved preprocessing has the encodings that its contract requires."""
    features = loaded.contract.features
    kinds = ["numeric" if item.encoding == "standard" else item.encoding for item in features]
    regression = isinstance(loaded.contract.target, RegressionTarget)
    terms = [len(item.encoded_columns) for item in loaded.contract.terms]
    return (
        terms == [len(item.rarity) for item in loaded.term_weights]
        and terms == [len(item.largest) for item in loaded.term_weights]
        and kinds == [item.kind for item in loaded.encodings]
        and regression == (loaded.target_scale is not None)
    )
