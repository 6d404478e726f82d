"""The workers as admins see them."""

from __future__ import annotations

from dataclasses import dataclass

from grader.fleet import WorkerStatus
from grader.fleet.ledger import WORKER_EXPIRY
from grader.server.services.container import Services


@dataclass(frozen=True)
class ListedWorker:
    """A worker of the last day, or one that is drained."""

    status: WorkerStatus
    connected: bool
    """Whether it has announced itself just now."""
    running: int
    """The jobs that it holds. Kinds of slots of one worker show the number of all of them."""


def list_workers(services: Services) -> list[ListedWorker]:
    """The workers by name. Raises `BoardError` if the database fails."""
    alive = {worker.name for worker in services.ledger.workers(services.settings.worker_alive_s)}
    leases = services.ledger.leases()
    return [
        ListedWorker(
            worker,
            worker.name in alive,
            sum(
                count
                for name, count in leases.items()
                if worker.name == name or worker.name.startswith(f"{name} ")
            ),
        )
        for worker in services.ledger.workers(WORKER_EXPIRY.total_seconds(), or_drained=True)
    ]
