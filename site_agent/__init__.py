"""Contains one hospital's programs: agent (network), gate (keys), trainer (patients) and desk (people)."""

from host.own_packages import require_own_packages

require_own_packages()
