"""Reads the configuration file coordinator.yaml, and checks every setting in this file.

Unknown keys and wrong types are refused, and one error lists all mistakes. Paths become absolute, so nothing depends on
the folder in which a program was started.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import Field

from host.starting_files import starting_values
from protos.plan.documents import Address, Document, PathText, read_document
from protos.plan.plan import Plan, read_plan

# Many commands read this file while the coordinator runs, and most of them start nothing.
_CONSEQUENCE = "The command did nothing. A running coordinator keeps its settings."


class CoordinatorConfiguration(Document):
    """The settings of one coordinator. Paths are relative to the file.

    Attributes:
        listen: the address at which sites connect, host:port.
        enrolment_listen: the address at which a site without a certificate enrols; without it enrolment is closed.
        authority: the directory that `pki init` made.
        state: the directory for runs; created with mode 0700.
        plans: the studies to run, one after another. Without plans, sites can only enrol.
        starting_files: the folder of the files that plans name under start.
        stay_seconds: the longest time to wait, after all studies, until every site is informed of the end.
    """

    listen: Address
    enrolment_listen: Address | None = None
    authority: PathText
    state: PathText
    plans: tuple[PathText, ...] = ()
    starting_files: PathText = "starting-files"
    stay_seconds: Annotated[float, Field(ge=0, le=30 * 86400)] = 86400.0


def read_configuration(path: Path) -> CoordinatorConfiguration:
    """Read coordinator.yaml.

    Raises:
        ConfigurationError: the file is wrong. The error lists every mistake.
    """
    configuration = read_document(path, CoordinatorConfiguration, consequence=_CONSEQUENCE)
    base = path.resolve().parent
    return configuration.model_copy(
        update={
            "authority": str(base / configuration.authority),
            "state": str(base / configuration.state),
            "starting_files": str(base / configuration.starting_files),
            "plans": tuple(str(base / plan) for plan in configuration.plans),
        }
    )


def read_plans(configuration: CoordinatorConfiguration) -> tuple[Plan, ...]:
    """Read every plan that coordinator.yaml names.

    Raises:
        ConfigurationError: a plan or its starting file is wrong. The error lists every mistake.
    """
    plans = tuple(read_plan(Path(plan), consequence=_CONSEQUENCE) for plan in configuration.plans)
    for plan in plans:
        starting_values(Path(configuration.starting_files), plan)
    return plans
