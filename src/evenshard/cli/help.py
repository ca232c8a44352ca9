"""The help of the commands in groups, and what a mistyped word may have meant."""

from __future__ import annotations

import argparse
import re
from collections.abc import Collection, Iterable, Mapping, Sequence

from evenshard.base.messages import brief, did_you_mean

_CHOICE = re.compile(r"argument (?P<name>\S+): invalid choice: (?P<given>.*) \(choose from (?P<known>.*)\)", re.DOTALL)
# Stands for a command in a parser's help and messages.
COMMAND = "COMMAND"
# Stands for the commands that no group of the help names: the stages of the loop, by their declarations.
OTHERS = "*"


class GroupedCommands(argparse.HelpFormatter):
    """Lists the commands of a parser under headings.

    Args:
        groups: names of commands by heading, where ``OTHERS`` stands for those that no group names.
    """

    def __init__(self, prog: str, groups: Mapping[str, Collection[str]]) -> None:
        super().__init__(prog)
        self._groups = groups

    def _format_action(self, action: argparse.Action) -> str:
        if not isinstance(action, argparse._SubParsersAction):
            return super()._format_action(action)
        known = {one.dest: one for one in action._choices_actions}  # argparse has no public name for them
        grouped = {name for names in self._groups.values() for name in names}
        others = [name for name in known if name not in grouped]
        blocks = []
        self._indent()
        for heading, names in self._groups.items():
            listed = [one for name in names for one in (others if name == OTHERS else (name,))]
            lines = "".join(super(GroupedCommands, self)._format_action(known[name]) for name in listed)
            blocks.append(f"  {heading}:\n{lines}")
        self._dedent()
        return "\n".join(blocks)


def unknown_words(words: Sequence[str], flags: Iterable[str]) -> str:
    """What is wrong with words that a parser could not use: the first flag among them, else all of them.

    Args:
        flags: that the parser has.
    """
    flag = next((word.partition("=")[0] for word in words if word.startswith("-")), None)
    if flag is None:
        return f"unexpected {', '.join(map(brief, words))}"
    return f"unknown flag {brief(flag)}.{did_you_mean(flag, flags)}"


def clearer(message: str) -> str:
    """A message of argparse in our words, with what a word that is none of the choices may have meant."""
    found = _CHOICE.fullmatch(message)
    if found is None:
        return re.sub(r"^argument (\S+): is ", r"\1 is ", message)
    known = [one.strip().strip("'\"") for one in found["known"].split(",")]
    given = found["given"].strip("'\"")
    meant = did_you_mean(given, known)
    if found["name"] == COMMAND:
        return f"unknown command {brief(given)}.{meant}"
    return f"{found['name']} is {brief(given)}. Choose from {', '.join(known)}.{meant}"
