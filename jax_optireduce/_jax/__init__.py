"""The only folder with private names of JAX, which may change in any version.

`_jax_version` has the tested ones. Public functions are the fallback where they exist.
"""
