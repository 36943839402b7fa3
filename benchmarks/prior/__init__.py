"""What federated-prior brings, measured by the deployed code on public tables with natural sites."""
