"""Progress of a training program: a bar or lines, and a plot at the end.

    with Progress(steps, unit="tokens", units_per_step=n, plot="loss.png") as progress:
        for batch in batches:
            state, loss, stats = train_step(state, batch)
            progress.step(loss, stats)

All processes make the same calls; process 0 alone shows and plots. On a terminal it
draws a bar, and below it the fields of the last step; elsewhere, as under `launch` and
in the log of a job, a line with the same fields every five seconds, and for the first
and the last step:

    step 40/300  loss 4.213  step 81 ms  12,642 tokens/s  late 0.12 %  slow rank 2

`loss` and `stats` stay on the device. `step` waits for those of the step before, not
for its own, so the device computes this step while the host prepares the next one. At
most two steps are under way: XLA on CPUs waits for ever with too many. A time is that
from the end of one step to the end of the next, on this process, without the blocks
`with progress.pause():`. The late share is the
mean of the missing shares of the contributions and of the results; in mode `lossy` this
data is lost.

The plot has four parts: loss over steps, loss over time, the distribution of the step
times with P50 and P99, and the late share of each step.
"""

import contextlib
import time
from collections import Counter, deque
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

import jax
import numpy as np
import rich.progress
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.ticker import MaxNLocator
from rich.console import Console, RenderableType
from rich.text import Text

import jax_optireduce

# Steps over which the shown time, rate and share are averaged, and the slow rank is
# counted. Chosen: smooth to the eye, and current.
WINDOW = 20

# Seconds between two lines without a terminal. Chosen: a person who waits sees that the
# program advances, and the log of an hour has 720 lines.
LINES_EVERY_S = 5.0

# Share of the steps in which a rank is the last, above which it is named slow. Chosen:
# equal ranks are the last in 1/n of the steps each, two of them thus in a half.
SLOW_SHARE = 0.75

# Source: Okabe and Ito, "Color Universal Design": distinct with any colour vision.
BLUE, GREEN, VERMILION, GREY = "#0072B2", "#009E73", "#D55E00", "#999999"


class _Step(NamedTuple):
    """One finished step.

    Attributes:
      loss: loss.
      late: share of the data that was not in time, in [0, 1]; None without a call.
      slowest: the process whose data arrived last, or -1.
      ended_s: end of the step, in seconds since the start.
    """

    loss: float
    late: float | None
    slowest: int
    ended_s: float


class _Bar(rich.progress.Progress):
    """A bar, and below it the description of its task."""

    def get_renderables(self) -> Iterator[RenderableType]:
        """Returns both lines: together they do not fit into 80 columns."""
        yield from super().get_renderables()
        for task in self.tasks:
            yield Text(task.description, no_wrap=True, overflow="ellipsis")


class Progress:
    """Shows the progress of a training program, see the head of this file.

    Attributes:
      losses: loss of each step that has been read, in order; after the `with` block of
        all steps.

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
        self._shows = jax.process_index() == 0
        self._console = Console(highlight=False)
        self._bar = _Bar(
            rich.progress.TextColumn("step"),
            rich.progress.MofNCompleteColumn(),
            rich.progress.BarColumn(),
            rich.progress.TimeRemainingColumn(),
            console=self._console,
            disable=not (self._shows and self._console.is_terminal),
        )
        self._task = self._bar.add_task("compiling", total=steps, completed=first)

    def __enter__(self) -> Self:
        """Starts the clock and the bar."""
        self._started_s = self._line_s = time.perf_counter()
        self._bar.start()
        if self._shows and self._bar.disable:
            self._print(f"step {self._first}/{self._steps}  compiling")
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Reads the last step, ends the bar, prints a summary and writes the plot.

        After an error the values of the last step may never be computed; it is left
        out.
        """
        if error is None:
            self._read_all()
        self._bar.stop()
        if not self._shows or not self._done:
            return
        self._print(self._summary())
        if self._plot is not None:
            self._plot.parent.mkdir(parents=True, exist_ok=True)
            picture(self._done, self._first).savefig(self._plot)
            self._print(f"plot: {self._plot}")

    @property
    def losses(self) -> list[float]:
        """Loss of each step that has been read, in order."""
        return [step.loss for step in self._done]

    def step(
        self, loss: Any, stats: jax_optireduce.CollectiveStats | None = None
    ) -> None:
        """Takes note of a dispatched step, and shows the step before it.

        Args:
          loss: float []; of an array that is divided over the processes this process
            shows the mean of its part.
          stats: statistics of the gradients' call; None for a step without one, which
            has no late share and no slow rank.
        """
        shown = None
        if stats is not None:
            late = (stats.missing_contributions, stats.missing_results)
            shown = (*late, stats.slowest_process)
        values = jax.tree.map(_local, (loss, shown))
        for value in _arrays(values):
            value.copy_to_host_async()
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
        """Waits for the oldest pending step and shows it."""
        loss, shown = jax.device_get(self._pending.popleft())
        late, slowest = None, -1
        if shown is not None:
            late = float(np.mean(shown[:2]))
            slowest = int(shown[2])
        ended_s = time.perf_counter() - self._started_s
        self._done.append(_Step(float(np.mean(loss)), late, slowest, ended_s))
        if not self._shows:
            return
        number, said = self._first + len(self._done), self._said()
        self._bar.update(self._task, completed=number, description=said)
        due = time.perf_counter() - self._line_s >= LINES_EVERY_S
        due = due or len(self._done) == 1 or number == self._steps
        if self._bar.disable and due:
            self._line_s = time.perf_counter()
            self._print(f"step {number}/{self._steps}  {said}")

    def _print(self, line: str) -> None:
        wraps = self._console.is_terminal
        self._console.print(line, markup=False, soft_wrap=not wraps)

    def _said(self) -> str:
        """Returns the text of the newest step."""
        recent = self._done[-WINDOW:]
        said = [f"loss {recent[-1].loss:.3f}"]
        # The first step contains the compilation.
        if len(times := _step_times(self._done)[-WINDOW:]):
            said += [f"step {1000 * times.mean():.0f} ms", self._rate(times)]
        recent = _with_call(self._done)[-WINDOW:]
        said += [f"late {_percent(_late(recent))}"]
        rank, share = _slowest(recent)
        if rank >= 0 and share > SLOW_SHARE and jax.process_count() > 1:
            said += [f"slow rank {rank}"]
        return "  ".join(said)

    def _rate(self, times: np.ndarray) -> str:
        return f"{self._units_per_step / times.mean():,.0f} {self._unit}/s"

    def _summary(self) -> str:
        """Returns the last line: the whole run."""
        last = self._done[-1]
        said = [
            f"{len(self._done)} steps in {last.ended_s:.1f} s",
            f"loss {last.loss:.4f}",
        ]
        if len(times := _step_times(self._done)):
            p50, p99 = 1000 * np.percentile(times, (50, 99))
            said += [f"step P50 {p50:.0f} ms, P99 {p99:.0f} ms", self._rate(times)]
        said += [f"late {_percent(_late(_with_call(self._done)))}"]
        return "; ".join(said)


def _local(value: Any) -> Any:
    """Returns the part of a global array on the first device of this process."""
    return value.addressable_data(0) if isinstance(value, jax.Array) else value


def _arrays(tree: Any) -> list[Any]:
    return [leaf for leaf in jax.tree.leaves(tree) if isinstance(leaf, jax.Array)]


def _is_ready(tree: Any) -> bool:
    return all(array.is_ready() for array in _arrays(tree))


def _percent(share: Any) -> str:
    return f"{100 * share:.2f} %"


def _step_times(done: list[_Step]) -> np.ndarray:
    """Returns the times of all steps but the first, in seconds."""
    return np.diff([step.ended_s for step in done])


def _slowest(done: list[_Step]) -> tuple[int, float]:
    """Returns the process that was the last most often, or -1, and in which share."""
    if not done:
        return -1, 0.0
    (rank, times), *_ = Counter(step.slowest for step in done).most_common(1)
    return rank, times / len(done)


def _with_call(done: list[_Step]) -> list[_Step]:
    """Returns the steps with the statistics of a call."""
    return [step for step in done if step.late is not None]


def _late(done: list[_Step]) -> float:
    """Returns the mean late share; 0 without steps."""
    return float(np.mean([step.late or 0.0 for step in done] or [0.0]))


def picture(done: list[_Step], first: int) -> Figure:
    """Returns the picture of finished steps.

    Args:
      done: the steps.
      first: steps before them.
    """
    spaced = ConstrainedLayoutEngine(w_pad=0.15, h_pad=0.15)
    figure = Figure(figsize=(11, 7), dpi=150, layout=spaced)
    (by_step, by_time), (distribution, late) = figure.subplots(2, 2)
    numbers = first + np.arange(1, len(done) + 1)
    losses = np.array([step.loss for step in done])
    _draw_loss(by_step, numbers, losses, "step")
    _title(by_step, f"Loss, and its mean over {WINDOW} steps")
    by_step.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=6))
    _draw_loss(by_time, np.array([step.ended_s for step in done]), losses, "time (s)")
    _title(by_time, f"Loss over time: {losses[-WINDOW:].mean():.3f} at the end")
    _draw_times(distribution, _step_times(done))
    _draw_late(late, numbers, done)
    for axes in (by_step, by_time, distribution, late):
        axes.grid(axis="y", color="#dddddd", linewidth=0.8)
        axes.spines[["top", "right"]].set_visible(False)
    return figure


def _title(axes: Axes, text: str) -> None:
    axes.set_title(text, loc="left", fontsize=11)


def _draw_loss(axes: Axes, x: np.ndarray, losses: np.ndarray, label: str) -> None:
    """Draws each loss, and their mean over the last `WINDOW` steps."""
    sums = np.cumsum(np.concatenate([np.zeros(1), losses]))
    from_ = np.maximum(0, np.arange(1, len(losses) + 1) - WINDOW)
    means = (sums[1:] - sums[from_]) / (np.arange(1, len(losses) + 1) - from_)
    axes.plot(x, losses, ".", color=GREY, markersize=3)
    axes.plot(x, means, color=BLUE, linewidth=2)
    axes.set_xlabel(label)
    axes.set_ylabel("loss")


def _draw_times(axes: Axes, times: np.ndarray) -> None:
    """Draws the share of the steps that took at most a given time."""
    axes.set_xlabel("step time (ms)")
    axes.set_ylabel("share of the steps (%)")
    axes.set_ylim(0, 103)
    if not len(times):
        _title(axes, "Step time: only the first step, with the compilation")
        return
    milliseconds = 1000 * np.sort(times)
    shares = 100 * np.arange(1, len(times) + 1) / len(times)
    axes.step(milliseconds, shares, where="post", color=BLUE, linewidth=2)
    # Beside the title: no place inside the axes is free of every curve.
    for percentile, colour, marker in ((50, GREEN, "o"), (99, VERMILION, "^")):
        at = float(np.percentile(milliseconds, percentile))
        label = f"P{percentile} {at:.1f} ms"
        axes.plot(at, percentile, marker, color=colour, markersize=8, label=label)
    axes.legend(
        loc="lower right", bbox_to_anchor=(1, 1), ncols=2, frameon=False, borderpad=0
    )
    _title(axes, "Step time")


def _draw_late(axes: Axes, numbers: np.ndarray, done: list[_Step]) -> None:
    """Draws the share of the data that was not in time, of each step."""
    called = np.array([step.late is not None for step in done])
    done = _with_call(done)
    shares = np.array([100 * (step.late or 0.0) for step in done])
    axes.set_xlim(numbers[0] - 0.5, numbers[-1] + 0.5)
    axes.vlines(numbers[called], 0, shares, color=VERMILION, linewidth=1.5)
    axes.set_ylim(0, max(1.0, 1.05 * shares.max(initial=0)))
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=6))
    axes.set_xlabel("step")
    axes.set_ylabel("late share (%)")
    rank, share = _slowest(done)
    slowest = f"; rank {rank} last in {100 * share:.0f} %" if rank >= 0 else ""
    _title(axes, f"Late data: mean {_percent(_late(done))}{slowest}")
