"""Names that are made of fields, `{topic}/{partition}`, and taken apart again. SQL expressions."""

import re
from collections.abc import Mapping
from string import Formatter

from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812 - as Spark's own documentation has it

# A partition as we write it: no sign, no zero in front. The text before the last separator is the topic's.
_PARTS = {"partition": "(0|[1-9][0-9]{0,9})", "broker": "(.+?)"}
_PART = "(.+)"


def filled(pattern: str, fields: Mapping[str, Column]) -> Column:
    """The name; null when a field of the pattern is null."""
    parts = []
    for text, name, _, _ in Formatter().parse(pattern):
        parts += [F.lit(text)] if text else []
        parts += [fields[name].cast("string")] if name else []
    return F.concat(*parts)


def taken_apart(name: Column, pattern: str) -> dict[str, Column]:
    """The fields that made a name, as strings; null where the name was not made so."""
    expression, names = "", []
    for text, field, _, _ in Formatter().parse(pattern):
        expression += re.escape(text)
        if field:
            expression += _PARTS.get(field, _PART)
            names.append(field)
    whole = f"(?s)^{expression}$"
    matches = name.rlike(whole)
    return {field: F.when(matches, F.regexp_extract(name, whole, number)) for number, field in enumerate(names, start=1)}
