"""The federated prior at a site: other hospitals' result, and how much this site's own rows trust it."""
