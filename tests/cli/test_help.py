"""Help by groups, and what a mistyped word may have meant."""

from __future__ import annotations

import pytest

from evenshard.cli import GROUPS, STAGE_COMMANDS, main
from evenshard.loop.loop import STAGES


def refused(words: str, capsys: pytest.CaptureFixture[str]) -> str:
    with pytest.raises(SystemExit) as stopped:
        main(words.split())
    out = capsys.readouterr()
    assert stopped.value.code == 2 and not out.out and out.err.count("\n") == 1
    return out.err.rstrip("\n")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("placee x.csv", "evenshard: unknown command 'placee'. Did you mean place? Try evenshard --help."),
        ("zzz", "evenshard: unknown command 'zzz'. Try evenshard --help."),
        ("pipeline rum", "evenshard pipeline: unknown command 'rum'. Did you mean run? Try evenshard pipeline --help."),
        (
            "place x.csv --devcies=8",
            "evenshard place: unknown flag '--devcies'. Did you mean --devices? Try evenshard place --help.",
        ),
        ("diff a b c", "evenshard diff: unexpected 'c'. Try evenshard diff --help."),
        ("place x.csv --format jsn", "evenshard place: --format is 'jsn'. Choose from json, torchrec"),
        ("place x.csv --devices 0", "--devices is 0, not a whole number from 1 to 4,096."),
    ],
)
def test_a_mistyped_word_names_what_it_may_have_meant_and_the_help_of_its_command(
    words: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert said in refused(words, capsys)


def printed_help(words: str, capsys: pytest.CaptureFixture[str]) -> str:
    with pytest.raises(SystemExit):
        main([*words.split(), "--help"])
    return capsys.readouterr().out


def test_every_command_stands_in_one_group(capsys: pytest.CaptureFixture[str]) -> None:
    text = printed_help("", capsys)
    stages = [stage.command for stage in STAGES]
    names = [
        one for group in GROUPS.values() for name in group for one in (stages if name == STAGE_COMMANDS else [name])
    ]
    listed = [line.split()[0] for line in text.splitlines() if line.startswith("    ") and line[4:5].isalpha()]
    assert listed == names and len(set(names)) == len(names)
    assert [line.strip(" :") for line in text.splitlines() if line.startswith("  ") and line.endswith(":")] == [*GROUPS]
    assert all(f"usage: evenshard {name} " in printed_help(name, capsys) for name in names)
