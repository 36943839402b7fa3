"""Who may call the coordinator, and how bytes come and go."""
