"""Metrics for Prometheus: types and names, without a network."""

import importlib
import sys

import prometheus_client
import pytest

from jax_optireduce import metrics


class Source:
    """A communicator with known figures."""

    rank = 3

    def counters(self):
        return {
            "calls_completed": 7,
            "memory_bytes": 10,
            "bytes_sent": 100,
            "bytes_received": 90,
        }

    def collective_totals(self):
        return {
            'grads "1"': {
                "calls": [2, 0, 1],
                "durations_s": [0.5, 1.0],
                "elapsed_s": 2.5,
                "bytes": 300,
                "missing_contributions": 0.25,
            }
        }


def _lines(monkeypatch, source):
    monkeypatch.setattr(metrics, "running", lambda: source)
    registry = prometheus_client.CollectorRegistry()
    registry.register(metrics.Collector())
    lines = prometheus_client.generate_latest(registry).decode().splitlines()
    return [line.removeprefix("# TYPE ") for line in lines if "# HELP" not in line]


def test_the_text_has_each_metric_with_its_type_and_labels(monkeypatch):
    labels = 'collective="grads \\"1\\"",rank="3"'
    durations = "jax_optireduce_call_duration_seconds"
    missing = "jax_optireduce_call_missing_contributions_ratio_total"
    io = "jax_optireduce_network_io_bytes_total"
    udp = 'network_transport="udp",rank="3"'
    assert _lines(monkeypatch, Source()) == [
        "jax_optireduce_calls_completed_total counter",
        'jax_optireduce_calls_completed_total{rank="3"} 7.0',
        "jax_optireduce_memory_bytes gauge",
        'jax_optireduce_memory_bytes{rank="3"} 10.0',
        f"{io} counter",
        f'{io}{{network_io_direction="transmit",{udp}}} 100.0',
        f'{io}{{network_io_direction="receive",{udp}}} 90.0',
        f"{durations} histogram",
        f'{durations}_bucket{{collective="grads \\"1\\"",le="0.5",rank="3"}} 2.0',
        f'{durations}_bucket{{collective="grads \\"1\\"",le="1.0",rank="3"}} 2.0',
        f'{durations}_bucket{{collective="grads \\"1\\"",le="+Inf",rank="3"}} 3.0',
        f"{durations}_count{{{labels}}} 3.0",
        f"{durations}_sum{{{labels}}} 2.5",
        "jax_optireduce_call_bytes_total counter",
        f"jax_optireduce_call_bytes_total{{{labels}}} 300.0",
        f"{missing} counter",
        f"{missing}{{{labels}}} 0.25",
    ]


def test_without_a_communicator_there_are_no_metrics(monkeypatch):
    assert _lines(monkeypatch, None) == []


def test_without_prometheus_client_the_error_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "prometheus_client.metrics_core", None)
    with pytest.raises(ImportError, match=r"install jax_optireduce\[prometheus\]"):
        importlib.reload(metrics)
