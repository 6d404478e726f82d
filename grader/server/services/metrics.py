"""Prometheus metrics. No label names a user or a submission."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from datetime import datetime

from prometheus_client import CollectorRegistry, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from grader.fleet import Ledger
from grader.report import Verdict
from grader.server.services.submission_queries import SubmissionQueries

BUCKETS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 10)


class Metrics:
    """The metrics of one server process."""

    def __init__(
        self,
        ledger: Ledger,
        queries: SubmissionQueries,
        alive_s: float,
        now: Callable[[], datetime],
    ) -> None:
        self._registry = CollectorRegistry()
        self._registry.register(_DatabaseCollector(ledger, queries, alive_s, now))
        self._requests = Histogram(
            "grade_http_request_seconds",
            "Time to answer a request, without event streams.",
            ["method", "route", "status"],
            buckets=BUCKETS_S,
            registry=self._registry,
        )
        self._swept: Callable[[], int] = lambda: 0
        self._verdicts: Callable[[], Mapping[Verdict, int]] = dict
        self._registry.register(_WatchedCollector(self))

    def request(self, method: str, route: str, status: int, seconds: float) -> None:
        """Count one request. `route` is a pattern and not a path, so that there are few labels."""
        self._requests.labels(method, route, str(status)).observe(seconds)

    def watch_sweeps(self, swept: Callable[[], int]) -> None:
        """Set the function that returns how many jobs were taken back from dead workers."""
        self._swept = swept

    def swept(self) -> int:
        """The number of jobs taken back from dead workers since the start."""
        return self._swept()

    def watch_verdicts(self, verdicts: Callable[[], Mapping[Verdict, int]]) -> None:
        """Set the function that counts the results that everybody may see in numbers."""
        self._verdicts = verdicts

    def verdicts(self) -> Mapping[Verdict, int]:
        """The number of results with each verdict, of those that everybody may see in numbers."""
        return self._verdicts()

    def text(self) -> bytes:
        """All metrics in Prometheus' text format. Raises `BoardError`."""
        return generate_latest(self._registry)


class _WatchedCollector(Collector):
    """Asks the functions that were set at each scrape."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics

    def collect(self) -> Iterator[Metric]:
        text = "Jobs taken back from dead workers."
        yield CounterMetricFamily("grade_swept_jobs", text, self._metrics.swept())
        results = GaugeMetricFamily("grade_results", "Results by verdict.", labels=["verdict"])
        for verdict, count in self._metrics.verdicts().items():
            results.add_metric([verdict], count)
        yield results


class _DatabaseCollector(Collector):
    """Reads the state of the queue from the database at each scrape."""

    def __init__(
        self,
        ledger: Ledger,
        queries: SubmissionQueries,
        alive_s: float,
        now: Callable[[], datetime],
    ) -> None:
        self._ledger = ledger
        self._queries = queries
        self._alive_s = alive_s
        self._now = now

    def describe(self) -> Iterator[Metric]:
        """Describe no metric, so that registering does not query the database."""
        return iter(())

    def collect(self) -> Iterator[Metric]:
        jobs = GaugeMetricFamily("grade_jobs", "Jobs by state.", labels=["state"])
        for state, count in self._queries.states().items():
            jobs.add_metric([state], count)
        yield jobs
        oldest = self._queries.oldest_waiting()
        age_s = max(0.0, (self._now() - oldest).total_seconds()) if oldest else 0.0
        yield GaugeMetricFamily("grade_queue_age_seconds", "Age of the oldest waiting job.", age_s)
        slots = GaugeMetricFamily("grade_worker_slots", "Slots alive.", labels=["via", "gpu"])
        totals: dict[tuple[str, str], int] = {}
        for worker in self._ledger.workers(self._alive_s):
            key = (worker.via, worker.gpu or "none")
            totals[key] = totals.get(key, 0) + worker.slots
        for (via, gpu), count in totals.items():
            slots.add_metric([via, gpu], count)
        yield slots
        yield from self._storage()

    def _storage(self) -> Iterator[Metric]:
        free_bytes = self._ledger.free_bytes()
        if free_bytes is not None:
            text = "Bytes by which the database can still grow."
            yield GaugeMetricFamily("grade_disk_free_bytes", text, free_bytes)
        storage = self._ledger.storage()
        text = "Size of the database."
        yield GaugeMetricFamily("grade_database_bytes", text, storage.database_bytes)
        text = "Stored sources, as the users' quotas count them."
        yield GaugeMetricFamily("grade_source_bytes", text, storage.source_bytes)
