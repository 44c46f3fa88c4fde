"""The command line as a whole: help, wrong uses, the end of a reader, Ctrl-C."""

import argparse
import importlib
import os
import re
import signal
import subprocess
import sys

import pytest

import jax_optireduce
from jax_optireduce import __main__
from jax_optireduce.tools import arguments, simulate

# Verb -> wrong uses, each with a part of the answer. "{...}" is a file, see `files`.
_WRONG = {
    "": {
        "lunch": "no verb 'lunch'. Did you mean 'launch'?",
        "Bench": "Did you mean 'bench'?",
        "xyzzy": "Verbs: launch, coordinator, bench",
        "--verson": "no option --verson. Did you mean --version?",
        "-v": "no option -v.",
    },
    "launch": {
        "": "not given: -n/--processes, target.",
        "-n 2": "not given: target.",
        "-n 0 x.py": "'0' is not a whole number of 1 or more.",
        "-n two x.py": "'two' is not a whole number",
        "--process 2 x.py": "no option --process. Did you mean --processes?",
        "-n 2 --restart often x.py": "'often' is not a whole number of 0 or more.",
        "-n 2 --cores all x.py": "'all' is not one of auto, none.",
        "-n 2 --grace-s never x.py": "'never' is not a time of 0 to 3600 seconds.",
        "-n 2 {missing}": "give the path of a script",
        "-n 2 {folder}": "give the path of a script",
        "x.py -n 2": "options come before the script.",
        "-n": "-n/--processes: expected one argument.",
    },
    "coordinator": {
        "": "not given: --port.",
        "--port 1234": "give --ranks N, or --replicas",
        "--ranks 2 --port 1234 --token-file t": "--token-file is for --replicas",
        "--ranks 2": "not given: --port.",
        "--ranks 1 --port 1234": "'1' is not a whole number of 2 or more.",
        "--ranks 2 --port 65536": "'65536' is not a port, from 1 to 65535.",
        "--ranks 2 --port http": "'http' is not a port",
        "--rank 2 --port 1234": "no option --rank. Did you mean --ranks?",
        "--ranks 2 --port 1234 train.py": "no place for the argument 'train.py'.",
    },
    "bench": {
        "--processes 1": "'1' is not a whole number of 2 or more.",
        "--processes": "--processes: expected one argument.",
        "--iteration 5": "no option --iteration. Did you mean --iterations?",
        "--iterations=many": "'many' is not a whole number of 1 or more.",
        "-b 1KB": "a size must look like 4, 1K, 100M or 1G",
        "-b 1M -e 1K": "--max-bytes must not be below --min-bytes",
        "-f 1": "'1' is not a factor above 1.",
        "--mode exat": "Did you mean 'exact'?",
        "--dtype float": "'float' is not one of float32,",
        "--loss 2": "'2' is not a share, from 0 to 1.",
        "--late-s -1": "'-1' is not a time of 0 to 3600 seconds.",
        "--late-s inf": "'inf' is not a time of 0 to 3600 seconds.",
        "--processes 2 --json {folder}": "cannot be written: Is a directory",
        "--processes 2 --json {missing}/a": "cannot be written: No such file",
        "more": "no place for the argument 'more'.",
    },
    "status": {
        "{missing}": "neither a socket nor a folder",
        "--interval -1": "'-1' is not a time",
        "--interval nan": "'nan' is not a time",
        "--interval soon": "'soon' is not a time",
        "--intervall 1": "Did you mean --interval?",
        "--json=x": "takes no value, got 'x'.",
        "-j": "no option -j.",
        "--interval": "expected one argument.",
    },
    "analyse": {
        "": "not given: FILE.",
        "{missing}": "missing cannot be read: No such file or directory.",
        "{folder}": "folder cannot be read: Is a directory.",
        "{empty}": "empty is empty; give a file of",
        "{binary}": "binary is not text.",
        "{text}": "text, line 1 is not JSON",
        "{json}": "json, line 1 is no line of a flight record: it has no pid",
        "{deep}": "deep, line 1 is not JSON",
        "--jsn {text}": "Did you mean --json?",
    },
    "timeline": {
        "": "not given: RECORD.",
        "{missing}": "missing cannot be read: No such file or directory.",
        "{folder}": "folder cannot be read: Is a directory.",
        "{empty}": "empty is empty",
        "{binary}": "binary is not text.",
        "{text}": "text, line 1 is not JSON",
        "{json}": "json, line 1 is no line of a flight record",
        "{head} -o {folder}": "folder cannot be written: Is a directory.",
        "{head} --out x": "Did you mean --output?",
    },
    "plot": {
        "": "not given: file.",
        "{missing}": "missing cannot be read: No such file or directory.",
        "{folder}": "folder cannot be read: Is a directory.",
        "{empty}": "empty is not JSON; give a file that",
        "{binary}": "binary is not text.",
        "{text}": "text is not JSON",
        "{json}": "json has schema None, expected 1",
        "{deep}": "deep is not JSON",
        "{json} {json}": "no place for the argument",
        "{json} --sise 1K": "Did you mean --size?",
    },
    "doctor": {
        "--jsno": "Did you mean --json?",
        "now": "no place for the argument 'now'.",
        "--json=1": "takes no value, got '1'.",
        "-x": "no option -x.",
    },
    "simulate": {
        "--sead 3": "Did you mean --seed?",
        "--seed x": "'x' is not a whole number of 0 or more.",
        "--seed -1": "'-1' is not a whole number of 0 or more.",
        "--count 0": "'0' is not a whole number of 1 or more.",
        "--size larg": "'larg' is not one of small, medium.",
        "--scenario los_ppm=1": "did you mean 'loss_ppm'",
        "--scenario ranks=4 --seed 3": "--seed 3 and --scenario exclude each other",
        "--scenario": "expected one argument.",
        "7": "no place for the argument '7'.",
    },
}


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Wrong files, by the kind of their fault."""
    folder = tmp_path_factory.mktemp("files")
    head = '{"rank": 0, "world_size": 1, "pid": 1, "reason": "", "written_unix_s": 1}'
    contents = {
        "empty": b"",
        "binary": bytes(range(256)),
        "text": b"a log\n",
        "json": b'{"rank": 0}\n',
        "deep": b"[" * 100_000,
        "head": head.encode(),
    }
    for name, content in contents.items():
        (folder / name).write_bytes(content)
    (folder / "folder").mkdir()
    return {name: str(folder / name) for name in (*contents, "folder", "missing")}


@pytest.mark.parametrize("verb", _WRONG)
def test_a_wrong_use_is_answered_in_one_or_two_lines(verb, files, capsys):
    for given, answer in _WRONG[verb].items():
        words = [verb, *given.format(**files).split()]
        try:
            code = __main__.main(words if verb else words[1:])
        except SystemExit as ended:
            code = ended.code
        printed = capsys.readouterr()
        assert code == 2, given
        assert printed.out == "", given
        assert answer in printed.err, (given, printed.err)
        assert printed.err.startswith(f"{verb or 'jax_optireduce'}: "), given
        first, *more = printed.err.splitlines()
        assert first.endswith((".", "?")) or "lists them all" in first, first
        prog = f"python -m jax_optireduce {verb}".rstrip()
        assert more in ([], [f"Help: {prog} --help"]), given


def _help(verb: str, capsys: pytest.CaptureFixture[str]) -> str:
    with pytest.raises(SystemExit) as ended:
        __main__.main([*([verb] if verb else []), "--help"])
    assert ended.value.code == 0
    return capsys.readouterr().out


@pytest.mark.parametrize("verb", __main__.VERBS)
def test_help_has_an_example_the_exit_codes_and_every_default(
    verb, capsys, monkeypatch
):
    monkeypatch.setenv("COLUMNS", "80")
    shown = _help(verb, capsys)
    assert max(map(len, shown.splitlines())) <= 80
    assert re.search(rf"^    python -m jax_optireduce {verb}\b", shown, re.MULTILINE)
    assert "Exit codes: 0, " in shown
    parser = arguments.Parser(verb, "")
    importlib.import_module(f"jax_optireduce.tools.{verb}").add_arguments(parser)
    for action in parser._actions:
        switch = action.nargs == 0 or isinstance(action, argparse._HelpAction)
        if action.option_strings and not action.required and not switch:
            without = action.dest in {"json", "against", "scenario", "ranks"}
            assert without or "default" in action.help, action.dest


def test_the_first_help_names_every_verb(capsys):
    shown = _help("", capsys)
    assert max(map(len, shown.splitlines())) <= 80
    for verb, (_, summary) in __main__.VERBS.items():
        assert re.search(rf"^  {verb} +{re.escape(summary)}$", shown, re.MULTILINE)
    assert __main__.main([]) == 2
    assert capsys.readouterr().err == shown


def test_the_versions_name_the_package_jax_and_the_compiler(capsys):
    with pytest.raises(SystemExit) as ended:
        __main__.main(["--version"])
    assert ended.value.code == 0
    first, second, third = capsys.readouterr().out.splitlines()
    assert first == f"jax_optireduce {jax_optireduce.__version__}"
    assert re.fullmatch(r"JAX \S+, jaxlib \S+, Python \S+", second)
    assert re.match(r"native module: (GCC|Clang) \d+\.\d+", third)


# The second one is several processes, of which process 0 writes.
@pytest.mark.parametrize("given", ["doctor", "bench --processes 2 -b 4 -e 4 -n 1"])
def test_a_reader_that_has_ended_ends_the_verb_silently(given):
    reading, writing = os.pipe()
    os.close(reading)
    ran = subprocess.run(
        [sys.executable, "-m", "jax_optireduce", *given.split()],
        stdout=writing,
        stderr=subprocess.PIPE,
        timeout=100,
        check=False,
    )
    os.close(writing)
    assert b"Traceback" not in ran.stderr
    assert b"[launch]" not in ran.stderr
    assert ran.returncode == 128 + signal.SIGPIPE


def test_ctrl_c_ends_a_verb_without_a_traceback(monkeypatch, capsys):
    def interrupted(_line):
        signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(simulate._native, "simulate", interrupted)
    assert __main__.main(["simulate", "--count", "3"]) == 128 + signal.SIGINT
    assert capsys.readouterr() == ("", "")


def test_neither_colours_nor_wider_lines_come_without_a_terminal(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setenv("TERM", "xterm-256color")
    assert __main__.main(["simulate", "--seed", "1"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("counter of the endpoint   sum over the runs")
    assert all(len(line) <= 80 and line == line.rstrip() for line in lines)
    assert "\x1b" not in "".join(lines)
