"""Parses names by patterns such as `{topic}/{partition}`, as Spark columns. `imports.filled` makes such names."""

import re
from string import Formatter

from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812 - as Spark's own documentation has it

# A partition in the form that we write: no sign, no leading zero. The text before the last separator belongs to the topic.
_PARTS = {"partition": "(0|[1-9][0-9]{0,9})", "broker": "(.+?)"}
_PART = "(.+)"


def taken_apart(name: Column, pattern: str) -> dict[str, Column]:
    """The fields of a name as strings; null if the name does not match the pattern."""
    expression, names = "", []
    for text, field, _, _ in Formatter().parse(pattern):
        expression += re.escape(text)
        if field:
            expression += _PARTS.get(field, _PART)
            names.append(field)
    whole = f"(?s)^{expression}$"
    matches = name.rlike(whole)
    return {field: F.when(matches, F.regexp_extract(name, whole, number)) for number, field in enumerate(names, start=1)}
