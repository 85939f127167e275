"""For the API reference: the fields of a dataclass become a table. The comment or help of a field describes it."""

from __future__ import annotations

import inspect
import io
import tokenize
from typing import Any

from griffe import Attribute, Class, Docstring, ExprCall, Extension


class Fields(Extension):
    """Reads `name: type = default  # comment`, and a text below the field."""

    def on_class_members(self, *, cls: Class, **kwargs: Any) -> None:
        fields = [m for m in cls.members.values() if isinstance(m, Attribute) and m.annotation and m.name[0] != "_"]
        if "dataclass" not in str([d.value for d in cls.decorators]) or not fields:
            return
        text = inspect.cleandoc(cls.docstring.value) if cls.docstring else ""
        lines = "".join(f"    {field.name}: {_description(field)}\n" for field in fields)
        cls.docstring = Docstring(f"{text}\n\nAttributes:\n{lines}", parent=cls)


def _description(field: Attribute) -> str:
    default = field.value
    text = " ".join(field.docstring.value.split()) if field.docstring else _comment(field)
    if isinstance(default, ExprCall) and str(default.function) == "option":
        default = default.arguments[0]
    if default is None or "field(" in str(default):
        return text or "-"
    return f"{text.rstrip('.')}. Default: `{default}`.".removeprefix(". ")


def _comment(field: Attribute) -> str:
    """That ends the field's last line."""
    line = field.lines_collection[field.filepath][(field.endlineno or 1) - 1]  # type: ignore[index]
    try:
        tokens = list(tokenize.generate_tokens(io.StringIO(line.lstrip()).readline))
    except tokenize.TokenError:
        return ""
    return next((t.string.removeprefix("#").strip() for t in tokens if t.type == tokenize.COMMENT), "")
