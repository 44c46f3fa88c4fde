"""The public functions that programs call, from `psum` to the Optax transformation."""
