"""One hospital's programs in global-layers: agent (network), gate (keys), trainer (patients), and the desk."""

from host.own_packages import require_own_packages

require_own_packages()
