"""The command line: `python -m jax_optireduce <verb> ...`.

Exit codes of every verb: 0, success; 1, the verb found a failure (a check of `doctor`,
a wrong sum of `bench`, a scenario of `simulate`); 2, usage error, or a file that cannot
be read or written; 130 after Ctrl-C; 141 after the end of the program that reads the
output. `launch` returns the exit code of its processes.
"""

import importlib
import os
import platform
import signal
import sys
from collections.abc import Sequence

import jax
import jaxlib

import jax_optireduce
from jax_optireduce import _native
from jax_optireduce._errors import OptiReduceError, UsageError, did_you_mean
from jax_optireduce.tools import arguments
from jax_optireduce.tools.launch import EXIT_BY_SIGNAL

# Verb -> (module, one line of help). A verb imports its module, whose `run` takes the
# arguments that its `add_arguments` has declared, and returns the exit code.
VERBS = {
    "launch": ("launch", "run a program as several processes on this host"),
    "coordinator": ("coordinator", "serve a job, of which any process may then die"),
    "bench": ("bench", "measure calls, and compare them with lax.psum over Gloo"),
    "status": ("status", "show the ranks of running jobs, their calls and peers"),
    "analyse": ("analyse", "find the cause of a stall in the flight records of ranks"),
    "doctor": ("doctor", "check this host, and explain how to remove bottlenecks"),
    "plot": ("plot", "plot the results of bench"),
    "timeline": ("timeline", "show flight records of several ranks in Perfetto"),
    "simulate": ("simulate", "run or replay the protocol in virtual time, from a seed"),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one verb.

    Args:
      argv: the arguments after the program's name; None takes the arguments of this
        process.

    Returns:
      The exit code.

    Raises:
      SystemExit: with 0 after `--help` and `--version`, with 2 after a usage error.
    """
    given = list(sys.argv[1:] if argv is None else argv)
    try:
        code = _run(given)
        sys.stdout.flush()
    except OptiReduceError as error:
        sys.stderr.write(f"{given[0]}: {error}\n")
        return 2 if isinstance(error, UsageError) else 1
    except KeyboardInterrupt:
        return EXIT_BY_SIGNAL + signal.SIGINT
    except BrokenPipeError:
        # Such as `head`. Python writes the rest of its buffer at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_BY_SIGNAL + signal.SIGPIPE
    return code


def _run(given: Sequence[str]) -> int:
    verb = given[0] if given else ""
    if verb in VERBS:
        tool = importlib.import_module(f"jax_optireduce.tools.{VERBS[verb][0]}")
        parser = arguments.Parser(verb, tool.__doc__ or "")
        tool.add_arguments(parser)
        return tool.run(parser.read(given[1:]))
    return _without_verb(given)


def _without_verb(given: Sequence[str]) -> int:
    """Shows the verbs or the versions, or refuses a verb that does not exist."""
    lines = [f"  {verb:<13}{summary}" for verb, (_, summary) in VERBS.items()]
    parser = arguments.Parser(
        "",
        "\n".join(["Tools of jax_optireduce:\n", *lines]),
        "`<verb> --help` describes a verb. Exit codes: 0, success; 1, failure; 2,\n"
        "usage error, or a file that cannot be read or written.",
    )
    parser.add_argument(
        "--version",
        action="version",
        version=_versions(),
        help="show the versions, and exit",
    )
    parser.add_argument("verb", nargs="?", metavar="<verb> ...", help="one of these")
    wrong = parser.read(given[:1]).verb
    if wrong is not None:
        hint = did_you_mean(wrong, VERBS)
        parser.error(f"there is no verb {wrong!r}.{hint} Verbs: {', '.join(VERBS)}.")
    parser.print_help(sys.stderr)
    return 2


def _versions() -> str:
    return (
        f"jax_optireduce {jax_optireduce.__version__}\n"
        f"JAX {jax.__version__}, jaxlib {jaxlib.version.__version__}, "
        f"Python {platform.python_version()}\n"
        f"native module: {_native.BUILD}, {platform.machine()}, "
        f"{_native.cipher_library()}"
    )


if __name__ == "__main__":
    sys.exit(main())
