"""Reads the configuration file coordinator.yaml, and checks every setting in this file.

Unknown keys and wrong types are refused, and one error lists all mistakes. Paths become absolute, so nothing depends on
the folder in which a program was started.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Self

from pydantic import Field, model_validator

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

    @model_validator(mode="after")
    def _has_two_addresses(self) -> Self:
        both = [one.lower().rpartition(":")[::2] for one in (self.listen, self.enrolment_listen or ":0")]
        hosts, ports = {host for host, _ in both}, {int(port) for _, port in both}
        if len(ports) == 1 and (len(hosts) == 1 or any(not set(host) - set("[0.:]") for host in hosts)):  # any address
            raise ValueError("enrolment_listen has the port of listen; give it another port")
        return self


def read_configuration(path: Path) -> CoordinatorConfiguration:
    """Read coordinator.yaml.

    Raises:
        ConfigurationError: the file is wrong. The error lists every mistake.
    """
    configuration = read_document(path, CoordinatorConfiguration, consequence=_CONSEQUENCE)
    base = path.resolve().parent
    paths = {name: str(base / getattr(configuration, name)) for name in ("authority", "state", "starting_files")}
    return configuration.model_copy(update=paths | {"plans": tuple(str(base / plan) for plan in configuration.plans)})


def read_plans(configuration: CoordinatorConfiguration) -> tuple[Plan, ...]:
    """Read every plan that coordinator.yaml names.

    Raises:
        ConfigurationError: a plan or its starting file is wrong. The error lists every mistake.
    """
    plans = tuple(read_plan(Path(plan), consequence=_CONSEQUENCE) for plan in configuration.plans)
    for plan in plans:
        starting_values(Path(configuration.starting_files), plan)
    return plans
