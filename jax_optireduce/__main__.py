"""The command line: `python -m jax_optireduce <verb> ...`.

Exit codes of every verb: 0, success; 1, the verb found a failure (a check of `doctor`,
a wrong sum of `bench`, a scenario of `simulate`); 2, usage error. `launch` returns the
exit code of its processes.
"""

import argparse
import importlib
import sys
from collections.abc import Sequence
from typing import NoReturn

# Verb -> (module, one line of help). A verb imports its module.
VERBS = {
    "launch": ("launch", "run a program as several processes on this host"),
    "bench": ("bench", "measure calls, and compare them with lax.psum over Gloo"),
    "status": ("status", "show the ranks of running jobs, their calls and peers"),
    "analyse": ("analyse", "find the cause of a stall in the flight records of ranks"),
    "doctor": ("doctor", "check this host, and explain how to remove bottlenecks"),
    "plot": ("plot", "plot the results of bench"),
    "timeline": ("timeline", "show flight records of several ranks in Perfetto"),
    "simulate": ("simulate", "run or replay the protocol in virtual time, from a seed"),
}


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        """Shows the whole help, not only the usage line, and exits with 2."""
        self.print_help(sys.stderr)
        self.exit(2, f"\n{self.prog}: {message}\n")


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one verb.

    Args:
      argv: the arguments after the program's name; None takes the arguments of this
        process.

    Returns:
      The exit code.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    parser = _Parser(
        prog="python -m jax_optireduce",
        description="Tools of jax_optireduce. `<verb> --help` describes each.",
        epilog="Exit codes: 0 success, 1 failure, 2 usage error.",
    )
    verbs = parser.add_subparsers(dest="verb", metavar="<verb>", required=True)
    for verb, (module, summary) in VERBS.items():
        sub = verbs.add_parser(verb, help=summary, description=summary)
        if verb in arguments[:1]:
            tool = importlib.import_module(f"jax_optireduce.tools.{module}")
            tool.add_arguments(sub)
            sub.set_defaults(run=tool.run)
    parsed = parser.parse_args(arguments)
    return parsed.run(parsed)


if __name__ == "__main__":
    sys.exit(main())
