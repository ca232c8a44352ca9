"""Knobs on the site: a field that is ``knob(default, "meaning")`` is shown with its meaning and its default."""

from __future__ import annotations

import ast
from typing import Any

import griffe


class Knobs(griffe.Extension):
    """What mkdocstrings' reader of sources is told of each attribute."""

    def on_attribute_instance(self, *, node: Any, attr: griffe.Attribute, **others: Any) -> None:
        """Called by griffe for each attribute that it finds."""
        value = getattr(node, "value", None)
        if not (isinstance(value, ast.Call) and isinstance(value.func, ast.Name) and value.func.id == "knob"):
            return
        default, meaning = value.args
        spelled = [ast.literal_eval(one.value) for one in value.keywords if one.arg == "torchrec"]
        text = f"{ast.literal_eval(meaning)}.{''.join(f' TorchRec: `{one}`.' for one in spelled)}"
        attr.docstring = griffe.Docstring(text[0].upper() + text[1:], lineno=node.lineno, parent=attr)
        attr.value = ast.unparse(default)
