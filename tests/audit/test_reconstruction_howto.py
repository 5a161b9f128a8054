"""The page on attacks: its command says what it shows, and every status is explained."""

import re
from pathlib import Path

import pytest

from mfdl.cli import main

PAGE = (Path(__file__).parents[2] / "docs" / "howto_attack.md").read_text(encoding="utf-8")


COMMANDS = re.findall(r"```console\n\$ mfdl (.*?)\n\.\.\.\n(.*?)```", PAGE, re.DOTALL)


@pytest.mark.parametrize(("command", "shown"), COMMANDS)
@pytest.mark.slow
def test_the_commands_of_the_page_say_what_the_page_shows(capsys, monkeypatch, tmp_path, command, shown):
    monkeypatch.chdir(tmp_path)
    assert main(command.split()) == 0
    said = " ".join(capsys.readouterr().out.split())
    for line in shown.strip().splitlines():
        assert line.removesuffix(" ...") in said
    if "--out" in command:
        assert (tmp_path / "attack" / "attack.png").stat().st_size > 0


def test_the_page_shows_both_units_of_privacy():
    assert ["--unit user" in command for command, _ in COMMANDS] == [False, True]


@pytest.mark.parametrize("status", ["exposed", "partly exposed", "undecided", "in a combination", "hidden"])
def test_the_page_explains_every_status(status):
    assert f"| {status} |" in PAGE
