"""Fingerprints of sources, by which copies are found though names, layout and comments differ.

Winnowing, as of Schleimer, Wilkerson, Aiken: "Winnowing: Local Algorithms for Document
Fingerprinting" (SIGMOD 2003), over the tokens of Pygments. No light library that is kept does it:
copydetect needs matplotlib, datasketch scipy. Pygments' patterns may backtrack for minutes on a
hostile source, so it runs in a process of its own, which is ended then.
"""

from __future__ import annotations

import multiprocessing
import os
import threading
import zlib
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

from pygments.lexers import get_lexer_by_name
from pygments.token import Comment, Name, Number, String, Text, _TokenType, is_token_subtype

from grader.submission import Language

GRAM_TOKENS = 15
"""Tokens that one hash covers."""

WINDOW = 8
"""Of this many hashes in a row one is kept, so a copy of 22 tokens in a row is always seen."""

MAX_KEPT = 1024
"""Hashes that are kept of one source, the smallest: enough for some 4,600 tokens."""

MAX_CACHED = 2000
"""Sources whose fingerprints are kept in memory, up to 50 KB each."""

MAX_HASH = 2**64 - 1

SOURCE_S = 5.0
"""How long the tokens of one source may take. 1 MiB of a kernel takes about 2 s."""

START_S = 30.0
"""How long the process may take to start."""

_LAYOUT = (Comment, Text, String.Doc)

_MODULUS = 2**64
_FACTOR = 0x9E3779B97F4A7C15


def tokens(source: str, language: Language) -> Iterator[str]:
    """The tokens without comments, layout and docstrings. A name is the same token whatever it is,
    but for one after a dot, which is seldom one's own; so is a number, and a string."""
    lexer = get_lexer_by_name("python" if language == "python" else "cpp")
    before = ""
    for kind, text in lexer.get_tokens(source):
        if any(map(partial(is_token_subtype, kind), (Comment.Preproc, Comment.PreprocFile))):
            yield from text.split()
        elif any(map(partial(is_token_subtype, kind), _LAYOUT)) or not text.strip():
            continue
        else:
            token = _token(kind, text, before)
            if not (token == before == "S"):  # the parts of one string
                yield token
            before = token


def _token(kind: _TokenType, text: str, before: str) -> str:
    if is_token_subtype(kind, Name):
        return text if before == "." else "N"
    if is_token_subtype(kind, Number):
        return "0"
    return "S" if is_token_subtype(kind, String) else text


def gram_hashes(source: str, language: Language) -> list[int]:
    """The hashes of all tokens in a row, `GRAM_TOKENS` at a time, in their order."""
    codes = [zlib.crc32(token.encode()) + 1 for token in tokens(source, language)]
    first_factor = pow(_FACTOR, GRAM_TOKENS, _MODULUS)
    hashes, rolled = [], 0
    for index, code in enumerate(codes):
        rolled = rolled * _FACTOR + code
        if index >= GRAM_TOKENS:
            rolled -= codes[index - GRAM_TOKENS] * first_factor
        rolled %= _MODULUS
        if index >= GRAM_TOKENS - 1:
            # The lowest hash of a window must not depend on the last token most of all.
            mixed = (rolled ^ (rolled >> 32)) * _FACTOR % _MODULUS
            hashes.append(mixed ^ (mixed >> 29))
    return hashes


class Fingerprint(NamedTuple):
    """What is kept of a source."""

    hashes: tuple[int, ...]
    """Sorted, each once."""
    end: int = MAX_HASH
    """Up to here, all hashes that winnowing keeps are there."""

    def without(self, others: frozenset[int]) -> Fingerprint:
        """The fingerprint without some hashes."""
        return Fingerprint(tuple(one for one in self.hashes if one not in others), self.end)

    def count(self, end: int) -> int:
        """The number of hashes up to `end`."""
        return bisect_right(self.hashes, end)


def fingerprint(source: str, language: Language) -> Fingerprint:
    """The hashes that winnowing keeps, of which only the `MAX_KEPT` smallest."""
    hashes = gram_hashes(source, language)
    starts = range(max(1, len(hashes) - WINDOW + 1))
    every = sorted({min(hashes[start : start + WINDOW]) for start in starts} if hashes else ())
    if len(every) <= MAX_KEPT:
        return Fingerprint(tuple(every))
    return Fingerprint(tuple(every[:MAX_KEPT]), every[MAX_KEPT - 1])


class Fingerprints:
    """The fingerprints of sources by their SHA-256, made in a process of its own. Thread-safe."""

    def __init__(self) -> None:
        self._cache: OrderedDict[str, Fingerprint | None] = OrderedDict()
        self._lock = threading.Lock()
        self._connection: Connection | None = None
        self._process: Any = None

    def of(
        self, sha256: str, language: Language, read: Callable[[], bytes | None]
    ) -> Fingerprint | None:
        """The fingerprint of a source, which `read` returns if it is not at hand. None if there is
        no source, or if its tokens took too long."""
        with self._lock:
            if sha256 not in self._cache:
                source = read()
                if source is None:
                    return None
                self._cache[sha256] = self._read(source.decode("utf-8", "replace"), language)
            self._cache.move_to_end(sha256)
            while len(self._cache) > MAX_CACHED:
                self._cache.popitem(last=False)
            return self._cache[sha256]

    def stop(self) -> None:
        """End the process; another call starts it again."""
        with self._lock:
            self._end()

    def _read(self, source: str, language: Language) -> Fingerprint | None:
        if self._connection is None:
            self._start()
        connection = self._connection
        assert connection is not None
        with suppress(EOFError, OSError):  # it has died of the source
            connection.send((source, language))
            if connection.poll(SOURCE_S):
                found: Fingerprint = connection.recv()
                return found
        self._end()
        return None

    def _start(self) -> None:
        # A fork would copy the locks of the server's threads without the threads.
        context = multiprocessing.get_context("spawn")
        self._connection, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs,), daemon=True)
        self._process.start()
        theirs.close()
        try:
            is_ready = self._connection.poll(START_S) and self._connection.recv()
        except EOFError:
            is_ready = False
        if not is_ready:
            self._end()  # a late message of it would be taken for the answer to a source
            raise OSError("the process that reads sources did not start")

    def _end(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.join()
        if self._connection is not None:
            self._connection.close()
        self._process = self._connection = None


def _serve(connection: Connection) -> None:
    """Answer each source with its fingerprint, until the other end is closed."""
    with suppress(OSError):
        os.nice(10)
    connection.send(True)
    with suppress(EOFError):
        while True:
            connection.send(fingerprint(*connection.recv()))
