"""Runs evaluations that need each other without recursion.

A task is a generator. It yields another task to get its result, and returns its own. The nesting and recursion of
programs therefore end at our limit (`limits.DEPTH`), not at Python's.
"""

from collections.abc import Generator
from typing import Any, TypeAlias

from allyouneed.rasp import limits
from allyouneed.rasp.errors import RaspLimitError

Task: TypeAlias = Generator["Task", Any, Any]


def run_task(task: Task) -> Any:
    """Run a task and every task that it yields, on an explicit stack."""
    stack, value = [task], None
    while stack:
        if len(stack) > limits.DEPTH:
            raise RaspLimitError(f"more than {limits.DEPTH} expressions inside each other")
        try:
            needed = stack[-1].send(value)
        except StopIteration as done:
            stack.pop()
            value = done.value
        else:
            stack.append(needed)
            value = None
    return value
