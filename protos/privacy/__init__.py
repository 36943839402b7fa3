"""Differential privacy that both programs agree on: what noise is drawn, and what it promises."""
