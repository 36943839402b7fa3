"""The gain from federated-prior, measured with the deployed code on public tables with natural sites."""
