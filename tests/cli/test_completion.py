"""The completion script, in a real bash."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from evenshard.cli import SHELLS, main
from support.documented import command

BASH = shutil.which("bash")


def script(shell: str, capsys: pytest.CaptureFixture[str]) -> str:
    with pytest.raises(SystemExit) as ended:
        main(["--print-completion", shell])
    assert not ended.value.code
    return capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.skipif(BASH is None, reason="there is no bash")
@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        (["pla"], {"place"}),
        (["place", "--host"], {"--hosts", "--host-memory-gb", "--host-bandwidth-gb-s"}),
        (["place", "m"], {"mine.yaml", "mlperf_dlrm_v2"}),
        (["place", "--rules", "m"], {"mine.yaml"}),
        (["place", "--format", ""], {"json", "torchrec", "torchrec-constraints"}),
        (["pipeline", "s"], {"submit", "stop", "schedule", "status"}),
    ],
)
def test_bash_completes(
    tmp_path: Path, typed: list[str], offered: set[str], capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "mine.yaml").touch()
    (tmp_path / "completion").write_text(script("bash", capsys))
    # What bash does when the tab key is pressed behind the last word.
    press = (
        'source ./completion; function=$(complete -p evenshard | sed "s/.*-F \\([^ ]*\\).*/\\1/"); '
        'COMP_WORDS=(evenshard "$@"); COMP_CWORD=$#; COMP_LINE="${COMP_WORDS[*]}"; COMP_POINT=${#COMP_LINE}; '
        '"$function" evenshard "${COMP_WORDS[COMP_CWORD]}" "${COMP_WORDS[COMP_CWORD-1]}"; echo "${COMPREPLY[*]}"'
    )
    assert BASH is not None
    done = subprocess.run([BASH, "-c", press, "tab", *typed], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert set(done.stdout.split()) == offered and done.stderr == ""


@pytest.mark.parametrize("shell", SHELLS)
def test_every_shell_has_a_script(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    text = script(shell, capsys)
    assert "--host-memory-gb" in text and "explain" in text


def test_the_documented_command_prints_it(capsys: pytest.CaptureFixture[str]) -> None:
    words = command("docs/place.md", "evenshard --print-completion")
    assert words[words.index(">") - 1] == "bash"
    with pytest.raises(SystemExit):
        main(words[: words.index(">")])
    assert capsys.readouterr().out == script("bash", capsys)


def test_without_shtab_the_extra_is_named() -> None:
    code = (
        "import sys; sys.modules['shtab'] = None; from evenshard.cli import main; main(['--print-completion', 'bash'])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 2 and "[completion]'" in done.stderr and "pip install" in done.stderr
