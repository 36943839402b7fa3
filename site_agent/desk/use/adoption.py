"""Stores which model a person has adopted at this hospital. The file is in the folder of the approvals.

Only a person's command writes the file. No service can write to its folder. The rules:

* one model is adopted, or none;
* the decision names the model's digest, so no other model can replace it under the same name;
* a file that cannot be read is an error. It never means that nobody has decided.
"""

from __future__ import annotations

import json
from pathlib import Path

from pydantic import ValidationError

from host.durable import make_folder, replace_file
from protos.errors import ConfigurationError
from protos.plan.documents import Document
from site_agent.state_folders import approvals_folder


class Adoption(Document):
    """One named person's decision to adopt a model, by the model's name in the run's report.

    `digest` is that of the saved model, BLAKE3 in hexadecimal. `at` is an aware time in ISO 8601.
    """

    run: str
    model: str
    digest: str
    by: str
    at: str


def keep_adoption(state: Path, adoption: Adoption) -> None:
    """Store which model a person adopted. Before this call, the caller has recorded the decision in the audit log."""
    path = _path(state)
    # If a service predicts, it runs as another user of the folder's group and reads the decision in this folder.
    make_folder(path.parent, mode=0o750)
    replace_file(path, json.dumps(adoption.model_dump(), indent=2).encode(), mode=0o640)


def find_adoption(state: Path) -> Adoption | None:
    """Return which model was adopted and by whom, or None. Raises ConfigurationError if the file cannot be read."""
    try:
        return Adoption.model_validate_json(_path(state).read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValidationError) as cause:
        reason = cause.strerror if isinstance(cause, OSError) else "it is damaged"
        raise ConfigurationError(
            what=f"The file that stores which model this hospital adopted cannot be read: {reason}.",
            consequence="No model was used, and nothing was sent.",
            remedy=(
                "Run `site-agent adopt MODEL --by NAME` again as root. Then run this command again under a user "
                "account of the site's group."
            ),
        ) from cause


def _path(state: Path) -> Path:
    return approvals_folder(state) / "models" / "in-use.json"
