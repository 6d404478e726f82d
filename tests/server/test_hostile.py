"""Hostile text in every text field, on both databases."""

from __future__ import annotations

import json

from tests.fleet.conftest import url as database  # noqa: F401  # on both databases
from tests.server.conftest import World

HOSTILE = ["' OR 1=1 --", "%", "a\x00b", "\ud800", "x" * 300, "𝔘", "'; DROP TABLE results; --"]


def test_hostile_text_in_each_field(world: World) -> None:
    world.graded("ada")
    for text in HOSTILE:
        try_text(world, text)
    assert len(world.client().get("/api/v1/submissions").json()["submissions"]) == 1


def try_text(world: World, text: str) -> None:
    root = world.client("root")
    safe = text.encode("utf-8", "surrogatepass")
    escaped = "".join(f"%{byte:02x}" for byte in safe)
    assert root.get(f"/users/{escaped}").status_code in (404, 422)
    for query in ("user", "problem"):
        reply = root.get(f"/api/v1/submissions?{query}={escaped}")
        assert reply.status_code in (200, 422)
        if reply.status_code == 200:
            assert reply.json()["submissions"] == []
    for field in ("problem", "gpu"):
        body = (
            b'--b\r\nContent-Disposition: form-data; name="file"; filename="k.py"\r\n\r\nx\r\n'
            b'--b\r\nContent-Disposition: form-data; name="'
            + field.encode()
            + b'"\r\n\r\n'
            + safe
            + b"\r\n--b--\r\n"
        )
        headers = {"Content-Type": "multipart/form-data; boundary=b"}
        reply = root.post("/api/v1/submissions", content=body, headers=headers)
        assert reply.status_code in (400, 404, 422), reply.text
    for path, given in (
        ("POST /users", {"name": text}),
        ("POST /users/ada/tokens", {"label": text}),
        ("POST /users/eve/ban", {"reason": text}),
        ("PUT /boards/softmax", {"note": text}),
        ("POST /rejudges", {"problem": text}),
        ("POST /rejudges", {"problem": "softmax", "reason": text}),
    ):
        method, _, where = path.partition(" ")
        address = f"/api/v1/admin{where}"
        content = json.dumps(given).encode()
        headers = {"Content-Type": "application/json"}
        reply = root.request(method, address, content=content, headers=headers)
        assert reply.status_code < 500, (path, reply.text)
    assert root.get("/api/v1/admin/audit").status_code == 200
    assert root.get("/api/v1/admin/users").status_code == 200
