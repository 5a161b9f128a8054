"""The command line as a whole: start-up, help, refusals, --config."""

import json
import subprocess
import sys

import pytest

import mfdl
from mfdl.cli import app, main

HEAVY = ["torch", "cvxpy", "sklearn", "matplotlib", "scipy.optimize", "scipy.linalg", "pyarrow", "networkx", "joblib"]


def run_python(code):
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)


@pytest.mark.parametrize("arguments", [["--help"], ["--version"], ["compare", "--help"], ["factorize", "--help"]])
def test_help_brings_none_of_the_heavy_libraries(arguments):
    code = (
        "import sys\nfrom mfdl.cli import main\n"
        f"code = main({arguments!r})\n"
        f"print([name for name in {HEAVY!r} if name in sys.modules], code)"
    )
    done = run_python(code)
    assert done.stdout.splitlines()[-1] == "[] 0", done.stdout + done.stderr


def test_version_and_help(capsys):
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"mfdl {mfdl.__version__}\n"
    assert main([]) == 0
    shown = capsys.readouterr().out
    for name in ("factorize", "compare", "data"):
        assert name in shown


def test_console_script_runs_in_a_process_of_its_own():
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            "import sys; from mfdl.cli import main; sys.exit(main())",
            "factorize",
            "--graph",
            "rin",
        ],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith("mfdl: unknown graph 'rin'; did you mean 'ring'?")
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["comapre"], "did you mean 'compare'"),
        (["compare", "--epoch", "3"], "--epochs"),
        (["compare", "--epochs", "many"], "'--epochs'"),
        (["factorize", "--mechanism", "mafald"], "did you mean 'mafalda'"),
        (["compare", "--config", "missing.toml"], "cannot read --config missing.toml"),
    ],
)
def test_wrong_names_are_one_line_with_the_nearest(arguments, message, capsys):
    assert main(arguments) == 2
    said = capsys.readouterr()
    assert message in said.err
    assert said.err.count("\n") == 1
    assert said.out == ""


def test_typer_runner_sees_the_same_commands():
    from typer.testing import CliRunner

    result = CliRunner().invoke(app, ["factorize", "--help"])
    assert result.exit_code == 0
    for flag in (
        "--graph",
        "--gossip",
        "--largest-component",
        "--device",
        "--jobs",
        "--config",
        "--data-home",
        "--json",
    ):
        assert flag in result.output


SMALL = ["--graph", "ring:n=4", "--epochs", "2", "--period", "4", "--json"]


class TestConfig:
    def test_file_sets_defaults_and_flags_win(self, tmp_path, capsys):
        file = tmp_path / "o.toml"
        file.write_text(
            'graph = "ring:n=4"\nepochs = 2\nmechanism = "bsr"\n[factorize]\nperiod = 4\n[compare]\nmu = 1\n'
        )
        assert main(["factorize", "--config", str(file), "--epochs", "3", "--json"]) == 0
        answer = json.loads(capsys.readouterr().out)
        assert (answer["mechanism"], answer["nodes"], answer["epochs"], answer["period"]) == ("bsr", 4, 3, 4)

    def test_dashes_and_underscores_are_alike(self, tmp_path, capsys):
        file = tmp_path / "o.toml"
        file.write_text("max_iterations = 1\nlargest-component = true\n")
        assert main(["factorize", "--config", str(file), *SMALL, "--tolerance", "1e-12"]) == 3
        assert json.loads(capsys.readouterr().out)["status"] == "stopped"

    @pytest.mark.parametrize(
        ("content", "message"),
        [
            ("epoch = 3", "unknown key 'epoch'; did you mean 'epochs'?"),
            ("epochs = ", "is not valid TOML"),
            ("epochs = [1, 2]", "epochs must be a text, a number or a list of texts"),
            ("json = true", "unknown key 'json'"),
        ],
    )
    def test_bad_toml(self, content, message, tmp_path, capsys):
        file = tmp_path / "o.toml"
        file.write_text(content)
        assert main(["factorize", "--config", str(file)]) == 2
        assert message in capsys.readouterr().err

    @pytest.mark.parametrize(("content", "message"), [("{}", "no `config` object"), ("{", "is not valid JSON")])
    def test_bad_results(self, content, message, tmp_path, capsys):
        file = tmp_path / "results.json"
        file.write_text(content)
        assert main(["compare", "--config", str(file)]) == 2
        assert message in capsys.readouterr().err


def test_api_refuses_steps_that_are_not_epochs_times_period():
    with pytest.raises(mfdl.InvalidInput, match="steps must be epochs \\* period, got steps=7"):
        mfdl.Cyclic(epochs=2, period=4, steps=7)
