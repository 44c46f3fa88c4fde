"""The verbs of `python -m jax_optireduce`, one module each."""
