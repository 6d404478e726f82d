from grader.automation import Grader, Item, Result, check, explain, grade, profile

__all__ = ["Grader", "Item", "Result", "__version__", "check", "explain", "grade", "profile"]
__version__: str
