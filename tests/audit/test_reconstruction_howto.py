"""The page on attacks: its command says what it shows, and every status is explained."""

import re
from pathlib import Path

import pytest

from mfdl.cli import main

PAGE = (Path(__file__).parents[2] / "docs" / "howto_attack.md").read_text(encoding="utf-8")


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
