"""The completion script, in a real bash."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from evenshard.cli import SHELLS, main

BASH = shutil.which("bash")


def script(shell: str, capsys: pytest.CaptureFixture[str]) -> str:
    with pytest.raises(SystemExit) as ended:
        main(["--print-completion", shell])
    assert not ended.value.code
    return capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.skipif(BASH is None, reason="there is no bash")
def test_bash_completes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "mine.yaml").touch()
    (tmp_path / "completion").write_text(script("bash", capsys))
    # What bash does when the tab key is pressed behind the last word.
    press = (
        'source ./completion; function=$(complete -p evenshard | sed "s/.*-F \\([^ ]*\\).*/\\1/"); '
        'COMP_WORDS=(evenshard "$@"); COMP_CWORD=$#; COMP_LINE="${COMP_WORDS[*]}"; COMP_POINT=${#COMP_LINE}; '
        '"$function" evenshard "${COMP_WORDS[COMP_CWORD]}" "${COMP_WORDS[COMP_CWORD-1]}"; echo "${COMPREPLY[*]}"'
    )
    assert BASH is not None
    for typed, offered in (
        (["pla"], {"place"}),
        (["place", "--host"], {"--hosts", "--host-memory-gb", "--host-bandwidth-gb-s"}),
        (["place", "m"], {"mine.yaml", "mlperf_dlrm_v2"}),
        (["place", "--rules", "m"], {"mine.yaml"}),
        (["pipeline", "s"], {"submit", "stop", "schedule", "status"}),
    ):
        words = [BASH, "-c", press, "tab", *typed]
        done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=True)
        assert set(done.stdout.split()) == offered and done.stderr == ""


@pytest.mark.parametrize("shell", SHELLS)
def test_every_shell_has_a_script(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    text = script(shell, capsys)
    assert "--host-memory-gb" in text and "explain" in text


def test_without_shtab_the_extra_is_named(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setitem(sys.modules, "shtab", None)
    with pytest.raises(SystemExit) as ended:
        main(["--print-completion", "bash"])
    error = capsys.readouterr().err
    assert ended.value.code == 2 and "[completion]'" in error and "pip install" in error
