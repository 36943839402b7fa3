"""Computes federated-prior at a site: the other hospitals' score, and its weight for this site's own rows."""
