"""Metrics for Prometheus: the counters of this process, and its calls by collective.

Needs the package prometheus_client, the extra `jax_optireduce[prometheus]`::

    import prometheus_client
    from jax_optireduce.metrics import Collector

    prometheus_client.REGISTRY.register(Collector())
    prometheus_client.start_http_server(9464 + rank, addr="127.0.0.1")

A scrape reads numbers of the C++ part. It waits for no program and no device.
"""

from collections.abc import Iterable, Iterator, Mapping
from itertools import accumulate
from typing import Any

from jax_optireduce._session.communicator import running

try:
    from prometheus_client.metrics_core import (
        CounterMetricFamily,
        GaugeMetricFamily,
        HistogramMetricFamily,
        Metric,
    )
    from prometheus_client.registry import Collector as _Base
except ImportError as error:
    raise ImportError(
        "jax_optireduce.metrics needs the package prometheus_client: install "
        "jax_optireduce[prometheus], or prometheus-client itself."
    ) from error

_PREFIX = "jax_optireduce"

# Counters that may also decrease.
_GAUGES = ("memory_bytes", "live_processes", "handles_open", "completion_threads_peak")

# The values of OpenTelemetry's attribute of network metrics.
# Source: OpenTelemetry, semantic conventions of system metrics (system.network.io).
_DIRECTIONS = {"bytes_sent": "transmit", "bytes_received": "receive"}


class Collector(_Base):
    """The metrics of the communicator of this process, for a registry of Prometheus.

    Without a communicator, before `init` and after `shutdown`, it has no metrics. With
    the next `init` all counters begin at 0 again. docs/observability.md lists the
    names.
    """

    def describe(self) -> Iterable[Metric]:
        """Returns nothing: a registration needs no communicator."""
        return ()

    def collect(self) -> Iterator[Metric]:
        """Yields the metrics, with the label `rank`: the index of the process."""
        communicator = running()
        if communicator is None:
            return
        rank = str(communicator.rank)
        yield from _of_counters(communicator.counters(), rank)
        yield from _of_collectives(communicator.collective_totals(), rank)


def _of_counters(counters: Mapping[str, int], rank: str) -> Iterator[Metric]:
    network = CounterMetricFamily(
        f"{_PREFIX}_network_io_bytes",
        "UDP payload bytes sent, and received and accepted.",
        labels=["rank", "network_io_direction", "network_transport"],
    )
    for name, value in counters.items():
        described = f"The counter {name} of jax_optireduce.stats()."
        if name in _DIRECTIONS:
            network.add_metric([rank, _DIRECTIONS[name], "udp"], value)
        elif name in _GAUGES:
            gauge = GaugeMetricFamily(f"{_PREFIX}_{name}", described, labels=["rank"])
            gauge.add_metric([rank], value)
            yield gauge
        else:
            family = CounterMetricFamily(
                f"{_PREFIX}_{name}", described, labels=["rank"]
            )
            family.add_metric([rank], value)
            yield family
    yield network


def _of_collectives(
    totals: Mapping[str, Mapping[str, Any]], rank: str
) -> Iterator[Metric]:
    labels = ["rank", "collective"]
    durations = HistogramMetricFamily(
        f"{_PREFIX}_call_duration_seconds",
        "Durations of the calls that ended with a result.",
        labels=labels,
    )
    sizes = CounterMetricFamily(
        f"{_PREFIX}_call_bytes",
        "Bytes of the buckets of these calls.",
        labels=labels,
    )
    missing = CounterMetricFamily(
        f"{_PREFIX}_call_missing_contributions_ratio",
        "Sum over these calls of the share of the contributions that was late.",
        labels=labels,
    )
    for collective, of_calls in totals.items():
        values = [rank, collective]
        bounds = [*map(str, of_calls["durations_s"]), "+Inf"]
        buckets = list(zip(bounds, accumulate(of_calls["calls"]), strict=True))
        durations.add_metric(values, buckets, sum_value=of_calls["elapsed_s"])
        sizes.add_metric(values, of_calls["bytes"])
        missing.add_metric(values, of_calls["missing_contributions"])
    yield from (durations, sizes, missing)
