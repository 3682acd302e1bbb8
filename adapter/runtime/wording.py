"""Numbers with nouns, for messages."""


def counted(count: int, noun: str) -> str:
    """Return `1 offset` or `2,000 offsets`; the plural is regular."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"
