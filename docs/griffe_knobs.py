"""Settings on the site: a field that ``evenshard.base.knobs`` declares is shown with its meaning and its default."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import griffe

from evenshard.base.knobs import REQUIRED, knobs_of


class Knobs(griffe.Extension):
    """What mkdocstrings' reader of sources is told of each attribute."""

    def on_attribute_instance(self, *, attr: griffe.Attribute, **others: Any) -> None:
        """Called by griffe for each attribute that it finds."""
        owner = attr.parent
        if not isinstance(owner, griffe.Class) or not isinstance(attr.value, griffe.ExprCall):
            return
        declared = knobs_of(getattr(import_module(owner.module.path), owner.name))
        if (one := next((one for one in declared if one.name == attr.name), None)) is None:
            return
        spelled = f" TorchRec: `{one.torchrec}`." if one.torchrec else ""
        text = f"{one.help[0].upper()}{one.help[1:]}.{spelled}"
        attr.docstring = griffe.Docstring(text, lineno=attr.lineno, parent=attr)
        attr.value = None if one.default is REQUIRED else repr(one.default)
