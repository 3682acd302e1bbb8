"""Numbers in sentences."""


def counted(count: int, noun: str) -> str:
    """`1 offset`, `2,000 offsets`: with a regular plural."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"
