"""The OpenAPI document and the server agree: each operation is called with valid and with invalid
input, and must answer as documented, and never with a 500.
"""

from __future__ import annotations

import warnings
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis.errors import Unsatisfiable

from grader.server.settings import Settings
from tests.fleet.conftest import url as database  # noqa: F401  # on both databases
from tests.server.conftest import World
from tests.server.test_access import TABLE, routes
from tests.waiting import PATIENCE_S

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # from its dependencies
    import schemathesis
    from schemathesis import GenerationMode
    from schemathesis.core.result import Ok

EXAMPLES = {"root": 8, "ada": 4}
"""Calls per operation and mode, by user."""


@pytest.fixture
def limits() -> Settings:
    return Settings(
        requests_per_minute=10**6,
        submissions_per_minute=10**6,
        max_in_flight=10**6,
        max_queue=10**6,
    )


METHODS = {"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE"}


def document_of(world: World) -> dict[str, Any]:
    document: dict[str, Any] = world.client().get("/api/v1/openapi.json").json()
    return document


def operations_of(document: dict[str, Any]) -> dict[tuple[str, str], dict[str, Any]]:
    """Method and path → the operation."""
    return {
        (method.upper(), path): operation
        for path, operations in document["paths"].items()
        for method, operation in operations.items()
    }


def test_every_route_is_declared(world: World) -> None:
    pages = {path for _, path in routes(world) if not path.startswith("/api/")}
    declared = set(operations_of(document_of(world)))
    expected = {row for row in routes(world, heads=True) if row[1] not in pages}
    assert declared == expected | {("GET", "/healthz"), ("GET", "/metrics")}


def test_a_method_that_is_not_declared_is_refused(world: World) -> None:
    declared = operations_of(document_of(world))
    client = world.client("root")
    for path in {path for _, path in declared if path.startswith("/api/")}:
        address = path.format(
            number=1, name="softmax", problem="softmax", group="course", team="tile"
        )
        for method in METHODS - {method for method, one in declared if one == path}:
            reply = client.request(method, address)
            assert reply.status_code == 405, f"{method} {path}"


def test_a_token_is_optional_where_none_is_needed(world: World) -> None:
    declared = operations_of(document_of(world))
    with_token = {
        where for where, operation in declared.items() if {} not in operation.get("security", [{}])
    }
    assert with_token == {
        (row.method, row.path)
        for row in TABLE
        if row.statuses[0] == 401 and row.path.startswith("/api/")
    }
    # A caller with a token may see more, except here.
    for where in set(declared) - with_token:
        [*schemes] = [name for way in declared[where].get("security", []) for name in way]
        knows_callers = where[1] not in ("/healthz", "/metrics", "/api/v1/openapi.json")
        assert schemes == (["bearer", "session"] if knows_callers else []), where


def test_the_document_is_complete(world: World) -> None:
    document = document_of(world)
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            where = f"{method} {path}"
            assert operation["summary"], where
            assert operation["description"], where
            assert {"400", "401", "403", "429", "500", "503"} <= set(operation["responses"]), where
            good = [code for code in operation["responses"] if code.startswith("2")]
            assert len(good) >= 1, where
            for code, reply in operation["responses"].items():
                if code >= "400":
                    assert reply["description"], where
                    [(kind, content)] = reply["content"].items()
                    assert kind == "application/json", f"{where} {code}"
                    assert content["schema"]["$ref"].endswith("/ErrorReply"), f"{where} {code}"


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.timeout(900)
class TestFuzz:
    @pytest.fixture
    def settings(self, limits: Settings) -> Settings:
        return limits

    def test_every_operation(self, world: World) -> None:
        self.call_every_operation(world, "root")

    # What she may not do is the same on both databases, and root may do all that she may.
    @pytest.mark.parametrize("database", ["sqlite"], indirect=True)
    def test_every_operation_of_a_competitor(self, world: World) -> None:
        self.call_every_operation(world, "ada")

    def call_every_operation(self, world: World, who: str) -> None:
        for _ in range(3):
            world.graded("ada")
        faults: list[str] = []
        schema = schemathesis.openapi.from_url(f"{world.url}/api/v1/openapi.json")
        for found in schema.get_all_operations():
            assert isinstance(found, Ok), found
            operation = found.ok()
            for mode in (GenerationMode.POSITIVE, GenerationMode.NEGATIVE):
                faults += fuzz(world, operation, mode, who)
        assert faults == []


def make_real(case: Any) -> None:
    """Replace half of the names by existing ones, since random names only give 404."""
    given = case.path_parameters
    if "number" in given and isinstance(given["number"], int) and given["number"] % 2:
        given["number"] = 1 + abs(given["number"]) % 5
    for name in ("name", "problem"):
        if name in given and len(given[name]) % 2:
            given[name] = "bob" if "/users/" in case.path else "softmax"
    if isinstance(case.body, dict) and "problem" in case.body:
        case.body["problem"] = "softmax"


CASES: dict[tuple[str, str], list[Any]] = {}
"""By operation and mode. Making them takes longer than calling the server, so each user and each
database gets the same ones."""


def cases_of(operation: Any, mode: Any) -> list[Any]:
    """Calls of an operation; none if no input is of this mode. Every run makes the same ones."""
    key = operation.label, mode.value
    if key not in CASES:
        made = CASES[key] = []

        @settings(
            max_examples=max(EXAMPLES.values()),
            database=None,
            derandomize=True,
            phases=[Phase.explicit, Phase.generate],
            suppress_health_check=list(HealthCheck),
        )
        @given(case=operation.as_strategy(generation_mode=mode))
        def make(case: Any) -> None:
            if mode is GenerationMode.POSITIVE:
                make_real(case)
            made.append(case)

        with suppress(Unsatisfiable):
            make()
        assert made or mode is GenerationMode.NEGATIVE
    return CASES[key]


def fuzz(world: World, operation: Any, mode: Any, who: str) -> list[str]:
    """Call an operation and return the faults of its answers, at most one of each kind."""
    faults: dict[str, str] = {}
    # A new token per operation, since one operation revokes tokens.
    token = world.services.accounts.new_token(who)
    documented = {int(code) for code in operation.definition.raw["responses"]}

    def call(case: Any) -> None:
        headers = {"Authorization": f"Bearer {token}"}
        reply = case.call(base_url=world.url, headers=headers, timeout=PATIENCE_S)
        what = f"{operation.label} {mode.value}"
        if reply.status_code not in documented | {404, 405}:
            faults.setdefault(what, f"{what}: {reply.status_code} {case.as_curl_command()[:600]}")
        if reply.status_code >= 500 and reply.status_code != 503:
            faults.setdefault(f"{what} fault", f"{what}: {reply.status_code} {reply.text[:200]}")
        if reply.status_code < 500:
            try:
                operation.validate_response(reply)
            except AssertionError as error:
                faults.setdefault(f"{what} schema", f"{what}: {error}"[:800])

    try:
        for case in cases_of(operation, mode)[: EXAMPLES[who]]:
            call(case)
    except Exception as error:  # noqa: BLE001  # an exception must not hide other faults
        faults["raised"] = f"{operation.label} {mode.value}: {type(error).__name__} {error}"[:800]
    return list(faults.values())
