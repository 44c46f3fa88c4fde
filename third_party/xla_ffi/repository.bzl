"""Finds the XLA FFI headers that jaxlib installs."""

_HEADERS = """
cc_library(
    name = "headers",
    hdrs = glob(["include/xla/ffi/api/*.h"]),
    includes = ["include"],
    visibility = ["//visibility:public"],
)
"""

def _installed_xla_ffi_impl(repository):
    python = repository.os.environ.get("PYTHON")
    if not python:
        root = repository.path(Label("//:BUILD")).dirname
        own = root.get_child(".venv-test").get_child("bin").get_child("python")
        python = str(own) if own.exists else "python3"
    found = repository.execute([python, "-c", "import jax; print(jax.ffi.include_dir())"])
    if found.return_code != 0:
        fail("%s has no jax, whose headers this build needs; run `make test` once, " % python +
             "or name another: bazel build --repo_env=PYTHON=/path/to/python //...")
    repository.symlink(found.stdout.strip(), "include")
    repository.file("BUILD", _HEADERS)

installed_xla_ffi = repository_rule(
    implementation = _installed_xla_ffi_impl,
    environ = ["PYTHON"],
    local = True,
)
