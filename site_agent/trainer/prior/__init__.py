"""The federated prior at a site: what other hospitals found, and how much this site's own rows trust it."""
