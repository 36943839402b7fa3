"""Federated-prior at a site: the other hospitals' result, and how much weight it has for this site's own rows."""
