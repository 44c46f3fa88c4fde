"""Progress of a training program: lines while it runs, and a plot at the end.

    with Progress(steps, unit="tokens", units_per_step=n, plot="loss.png") as progress:
        for batch in batches:
            state, loss, stats = train_step(state, batch)
            progress.step(loss, stats)

All processes make the same calls; process 0 alone prints and plots. It prints a line
every five seconds, and for the first and the last step:

    step 40/300  loss 4.213  step 81 ms  12,642 tokens/s  late 0.12 %

`loss` and `stats` stay on the device. `step` waits for those of the step before, not
for its own, so the device computes this step while the host prepares the next one. At
most two steps are under way: XLA on CPUs waits for ever with too many. A time is that
from the end of one step to the end of the next, on this process, without the blocks
`with progress.pause():`. The late share is the mean of the missing shares of the
contributions and of the results; in mode `lossy` this data is lost.
"""

import contextlib
import time
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple, Self

import jax
import numpy as np
from matplotlib.figure import Figure

import jax_optireduce

# Steps over which the printed time, rate and share are averaged. Chosen: smooth to the
# eye, and current.
WINDOW = 20

# Seconds between two lines. Chosen: a person who waits sees that the program advances,
# and the log of an hour has 720 lines.
LINES_EVERY_S = 5.0


class _Step(NamedTuple):
    """One finished step.

    Attributes:
      loss: loss.
      late: share of the data that was not in time, in [0, 1]; NaN without a call.
      ended_s: end of the step, in seconds since the start.
    """

    loss: float
    late: float
    ended_s: float


class Progress:
    """Prints the progress of a training program, see the head of this file.

    Args:
      steps: number of steps of the whole training.
      first: steps before this run: that of the checkpoint which it continues.
      unit: the data that is counted, such as "tokens" or "examples".
      units_per_step: their number in a step of all processes together.
      plot: path of the picture, .png; None draws none.
    """

    def __init__(
        self,
        steps: int,
        *,
        first: int = 0,
        unit: str = "examples",
        units_per_step: float,
        plot: str | Path | None = None,
    ) -> None:
        self._steps, self._first = steps, first
        self._unit, self._units_per_step = unit, units_per_step
        self._plot = None if plot is None else Path(plot)
        self._pending: deque[tuple[Any, Any]] = deque()
        self._done: list[_Step] = []

    def __enter__(self) -> Self:
        """Starts the clock."""
        self._started_s = self._line_s = time.perf_counter()
        self._print(f"step {self._first}/{self._steps}  compiling")
        return self

    def __exit__(self, *error: object) -> None:
        """Reads the last step, prints a summary and writes the plot.

        After an error the values of the last step may never be computed; it is left
        out.
        """
        if error[0] is None:
            self._read_all()
        if not self._done:
            return
        took_s = self._done[-1].ended_s
        fields = "; ".join(self._fields(len(self._done)))
        self._print(f"{len(self._done)} steps in {took_s:.1f} s; {fields}")
        if self._plot is not None and jax.process_index() == 0:
            self._plot.parent.mkdir(parents=True, exist_ok=True)
            picture(self._done, self._first).savefig(self._plot)
            self._print(f"plot: {self._plot}")

    def step(
        self, loss: Any, stats: jax_optireduce.CollectiveStats | None = None
    ) -> None:
        """Takes note of a dispatched step, and prints the step before it.

        Args:
          loss: float []; of an array that is divided over the processes this process
            prints the mean of its part.
          stats: statistics of the gradients' call; None for a step without one.
        """
        late = ()
        if stats is not None:
            late = (stats.missing_contributions, stats.missing_results)
        values = jax.tree.map(_local, (loss, late))
        jax.copy_to_host_async(values)
        self._pending.append(values)
        # A finished step is read now, for the time of its end.
        while len(self._pending) > 1 or (self._pending and _is_ready(self._pending[0])):
            self._read()

    @contextlib.contextmanager
    def pause(self) -> Iterator[None]:
        """Leaves the time of a block out of the times: a checkpoint, an evaluation."""
        self._read_all()
        began_s = time.perf_counter()
        yield
        self._started_s += time.perf_counter() - began_s

    def _read_all(self) -> None:
        while self._pending:
            self._read()

    def _read(self) -> None:
        """Waits for the oldest pending step and prints it."""
        loss, late = jax.device_get(self._pending.popleft())
        now_s = time.perf_counter()
        share = float(np.mean(late)) if late else float("nan")
        self._done.append(_Step(float(np.mean(loss)), share, now_s - self._started_s))
        number = self._first + len(self._done)
        due = now_s - self._line_s >= LINES_EVERY_S
        if due or len(self._done) == 1 or number == self._steps:
            self._line_s = now_s
            fields = "  ".join(self._fields(WINDOW))
            self._print(f"step {number}/{self._steps}  {fields}")

    def _fields(self, window: int) -> list[str]:
        """Returns the loss, the time, the rate and the late share of the last steps."""
        fields = [f"loss {self._done[-1].loss:.3f}"]
        # The first step contains the compilation.
        if len(times := _step_times(self._done)[-window:]):
            rate = self._units_per_step / times.mean()
            fields += [f"step {1000 * times.mean():.0f} ms"]
            if window > WINDOW:
                fields += [f"P99 {1000 * np.percentile(times, 99):.0f} ms"]
            fields += [f"{rate:,.0f} {self._unit}/s"]
        late = [step.late for step in self._done[-window:] if step.late >= 0]
        return [*fields, f"late {100 * np.mean(late or [0.0]):.2f} %"]

    def _print(self, line: str) -> None:
        if jax.process_index() == 0:
            print(line, flush=True)


def _local(value: Any) -> Any:
    """Returns the part of a global array on the first device of this process."""
    return value.addressable_data(0) if isinstance(value, jax.Array) else value


def _is_ready(tree: Any) -> bool:
    leaves: list[Any] = jax.tree.leaves(tree)
    return all(leaf.is_ready() for leaf in leaves if hasattr(leaf, "is_ready"))


def _step_times(done: list[_Step]) -> np.ndarray:
    """Returns the times of all steps but the first, in seconds."""
    return np.diff([step.ended_s for step in done])


def picture(done: list[_Step], first: int) -> Figure:
    """Returns the picture of the finished steps after the first `first`."""
    figure = Figure(figsize=(9, 7), dpi=120, layout="constrained")
    numbers = first + np.arange(1, len(done) + 1)
    loss, times, late = figure.subplots(3, 1, sharex=True)
    loss.plot(numbers, [step.loss for step in done])
    loss.set_ylabel("loss")
    times.plot(numbers[1:], 1000 * _step_times(done), ".")
    times.set_ylabel("step time (ms)")
    late.plot(numbers, [100 * step.late for step in done], ".")
    late.set_ylabel("late share (%)")
    late.set_xlabel("step")
    return figure
