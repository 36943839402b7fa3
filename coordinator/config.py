"""coordinator.yaml as a frozen record."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, TypeAlias

from pydantic import AfterValidator, StringConstraints

from protos.documents import Document, read_document
from protos.plan import Plan

_CONSEQUENCE = "The coordinator did not start."


def _with_a_real_port(address: str) -> str:
    if not 0 < int(address.rpartition(":")[2]) < 1 << 16:
        raise ValueError("a port lies between 1 and 65535")
    return address


Address: TypeAlias = Annotated[
    str,
    StringConstraints(pattern=r"^(\[[0-9a-fA-F:.]+\]|[A-Za-z0-9._-]+):[0-9]{1,5}$", max_length=260),
    AfterValidator(_with_a_real_port),
]
PathText: TypeAlias = Annotated[str, StringConstraints(pattern=r"^[^\x00-\x1f\x7f]+$", max_length=4000)]


class CoordinatorConfiguration(Document):
    """What one coordinator needs to know. Paths are relative to the file.

    Attributes:
        listen: where sites reach the federation, host:port.
        enrolment_listen: where a site without a certificate asks for one; leave it out to close
            enrolment.
        authority: the directory that `pki init` made.
        state: where runs are recorded; created with mode 0700.
        plans: the studies to run, one after another; with none, sites can enrol and nothing runs.
    """

    listen: Address
    enrolment_listen: Address | None = None
    authority: PathText
    state: PathText
    plans: tuple[PathText, ...] = ()


def read_configuration(path: Path) -> CoordinatorConfiguration:
    """The configuration with its paths made absolute.

    Raises:
        ConfigurationError: the file is wrong; every mistake is named.
    """
    configuration = read_document(path, CoordinatorConfiguration, consequence=_CONSEQUENCE)
    base = path.resolve().parent
    return configuration.model_copy(
        update={
            "authority": str(base / configuration.authority),
            "state": str(base / configuration.state),
            "plans": tuple(str(base / plan) for plan in configuration.plans),
        }
    )


def read_plans(configuration: CoordinatorConfiguration) -> tuple[Plan, ...]:
    """The plans that the configuration names.

    Raises:
        ConfigurationError: a plan is wrong; every mistake is named.
    """
    return tuple(read_document(Path(plan), Plan, consequence=_CONSEQUENCE) for plan in configuration.plans)
