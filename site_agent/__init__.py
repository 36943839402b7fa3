"""Contains one hospital's programs: agent (network access), gate (keys), trainer (patients' data) and desk (people)."""

from host.own_packages import require_own_packages

require_own_packages()
