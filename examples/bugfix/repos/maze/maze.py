"""The fewest steps through a maze."""

from collections import deque
from collections.abc import Sequence

WALL = "#"


def steps(maze: Sequence[str], start: tuple[int, int], goal: tuple[int, int]) -> int | None:
    """Fewest steps between two free places (row, column), up, down, left and right; None where there is no way."""
    seen = {start}
    queue = deque([(start, 0)])
    while queue:
        (row, column), count = queue.popleft()
        if (row, column) == goal:
            return count
        for there in ((row - 1, column), (row + 1, column), (row, column - 1), (row, column + 1)):
            if there not in seen and _free(maze, *there):
                seen.add(there)
                queue.append((there, count + 1))
    return None


def _free(maze: Sequence[str], row: int, column: int) -> bool:
    try:
        return maze[row][column] != WALL
    except IndexError:
        return False
