"""The page on attacks: its code runs and prints what it says."""

import doctest
import re
from pathlib import Path

import pytest

from mfdl.cli import main

PAGE = (Path(__file__).parents[2] / "docs" / "howto_attack.md").read_text(encoding="utf-8")


def test_the_code_of_the_page_prints_what_the_page_shows():
    names: dict[str, object] = {}
    said: list[str] = []
    blocks = re.findall(r"```(python|pycon)\n(.*?)```", PAGE, re.DOTALL)
    assert {kind for kind, _ in blocks} == {"python", "pycon"}
    for kind, code in blocks:
        if kind == "python":
            exec(compile(code, "howto_attack.md", "exec"), names)
            continue
        test = doctest.DocTestParser().get_doctest(code, names, "howto_attack.md", None, 0)
        doctest.DocTestRunner(verbose=False).run(test, out=said.append, clear_globs=False)
        names.update(test.globs)
    assert not said, "".join(said)


def test_the_command_of_the_page_says_what_the_page_shows(capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    block = re.search(r"```console\n\$ mfdl (.*?)\n\.\.\.\n(.*?)```", PAGE, re.DOTALL)
    assert block is not None
    assert main(block[1].split()) == 0
    said = " ".join(capsys.readouterr().out.split())
    for line in block[2].strip().splitlines():
        assert line.removesuffix(" ...") in said
    assert (tmp_path / "attack" / "attack.png").stat().st_size > 0


@pytest.mark.parametrize("status", ["exposed", "partly exposed", "undecided", "in a combination", "hidden"])
def test_the_page_explains_every_status(status):
    assert f"| {status} |" in PAGE
