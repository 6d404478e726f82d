from grader.automation import Grader, Item, Result, check, explain, grade

__all__ = ["Grader", "Item", "Result", "__version__", "check", "explain", "grade"]
__version__: str
