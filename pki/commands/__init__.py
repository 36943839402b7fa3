"""Commands of `pki`, a file per subject."""
