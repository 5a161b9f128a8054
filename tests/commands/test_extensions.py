"""What other packages add to the command line: found by entry points, and missed with words that say what to do."""

import importlib.metadata
import json
from types import SimpleNamespace

import pytest
import typer
from refusals import refuses

from mfdl import extensions
from mfdl.commands import app, main


def say_hello(name: str = "you") -> None:
    """Greet."""
    typer.echo(f"hello {name}")


@pytest.fixture
def installed(monkeypatch):
    """Entry points by group, in place of those of this installation."""
    entries = {}

    def entry_points(*, group, name=None):
        of_group = [entry for entry in entries.get(group, []) if name in (None, entry.name)]
        return importlib.metadata.EntryPoints(of_group)

    monkeypatch.setattr(importlib.metadata, "entry_points", entry_points)

    def install(group, name, value):
        entries.setdefault(group, []).append(importlib.metadata.EntryPoint(name, value, group))

    return install


def listed():
    return typer.main.get_command(app).list_commands(SimpleNamespace())


def test_a_command_of_another_package_is_listed_runs_and_corrects_its_name(installed, capsys):
    installed(extensions.COMMANDS, "greet", f"{__name__}:say_hello")
    assert listed().index("report") < listed().index("greet") < listed().index("mechanisms")
    assert main(["greet", "--name", "all"]) == 0
    assert capsys.readouterr().out == "hello all\n"
    assert main(["--help"]) == 0
    assert "greet       Greet." in capsys.readouterr().out
    assert main(["gret"]) == 2
    assert "did you mean 'greet'?" in capsys.readouterr().err


def test_no_package_replaces_a_command_of_this_one(installed, capsys):
    installed(extensions.COMMANDS, "trust", f"{__name__}:say_hello")
    assert listed().count("trust") == 1
    assert main(["trust", "list", "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)) == 9


def test_commands_of_this_package_do_not_look_for_others(monkeypatch):
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda **_: pytest.fail("looked"))
    assert main(["trust", "explain", "pndp"]) == 0


def test_without_other_packages_there_are_ours(installed, capsys):
    assert "claims" not in listed()
    assert main(["claims"]) == 2
    assert "unknown command 'claims'" in capsys.readouterr().err


def test_without_a_bibliography_citing_says_what_to_install(installed, capsys):
    assert main(["mechanisms", "--mechanism", "corn", "--cite"]) == 2
    output = capsys.readouterr()
    assert output.out == ""
    assert "--cite needs the bibliography of mfdl_papers" in output.err
    assert "pip install mfdl" in output.err


@pytest.mark.parametrize("value", ["no_such_package.commands:run", f"{__name__}:no_such_function"])
def test_an_entry_that_cannot_be_imported_says_what_to_install(installed, value):
    installed(extensions.COMMANDS, "broken", value)
    refuses(r"'broken' of mfdl\.commands is .* cannot", extensions.load, extensions.COMMANDS, "broken")
    assert main(["broken"]) == 2
