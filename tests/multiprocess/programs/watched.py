"""Calls in which one rank may be slow, with the log on standard output.

Arguments: mode, the rank that sleeps before each step (-1: none), seconds, the number
of steps in which it sleeps, the number of all steps. Prints "log <step> <line>" for
each line of the log, and "step <number> <elapsed s> <behind s>" for the record of each
step at the end.
"""

import logging
import sys
import time

import jax
import meshes
import numpy as np

import jax_optireduce as jo

MODE, SLEEP_S = sys.argv[1], float(sys.argv[3])
SLOW_RANK, SLOW_STEPS, STEPS = int(sys.argv[2]), int(sys.argv[4]), int(sys.argv[5])


class Print(logging.Handler):
    """Prints a line with the step in which it was logged."""

    def emit(self, record: logging.LogRecord) -> None:
        print("log", step, record.getMessage(), file=sys.stderr)


step = -1
logging.getLogger("jax_optireduce").addHandler(Print(logging.WARNING))
with jo.init() as communicator:
    mesh = meshes.make((jax.device_count(),), ("dp",))
    program = meshes.mapped(mesh, lambda x: jo.psum(x, "dp", mode=MODE, name="grads"))
    given = meshes.spread(mesh, np.ones((jax.device_count(), 20_000), np.float32))
    for step in range(STEPS):
        # The computation of a step.
        time.sleep(0.05)
        if jax.process_index() == SLOW_RANK and step < SLOW_STEPS:
            time.sleep(SLEEP_S)
        jax.block_until_ready(program(given))
    record = communicator.flight_record()
    assert [call["number"] for call in record] == list(range(1, STEPS + 1)), record
    # A rank that is late may skip calls.
    sequences = [call["sequence"] for call in record]
    assert sequences == sorted(set(sequences)), record
    assert {call["state"] for call in record} == {"done"}
    for call in record:
        print("step", call["sequence"], call["elapsed_s"], call["behind_s"])
    jax.block_until_ready(program(given))
