"""The board: graded results, kept for good, and who is ahead."""

from grader.board.ranking import Entry, ranks
from grader.board.store import Board, Stored, default_url
from grader.db.engine import BoardError

__all__ = ["Board", "BoardError", "Entry", "Stored", "default_url", "ranks"]
