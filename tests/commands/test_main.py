"""The command line as a whole: start-up, help, names, refusals, one config everywhere, and what other packages add."""

import dataclasses
import importlib.metadata
import json
import subprocess
import sys
from types import SimpleNamespace

import pytest
import typer
from finished_runs import answer_of, printed, refused
from vocabulary import dynamics_on, each, refuses

import mfdl
from mfdl import EveryStep, algorithms, extensions, trust
from mfdl.algorithms.registry import MECHANISMS, OF_BALLS_IN_BINS
from mfdl.commands import app, main
from mfdl.commands.attack import AttackConfig
from mfdl.commands.audit import AuditConfig
from mfdl.commands.configs import AccountConfig, FactorizeConfig
from mfdl.runs.experiment import Experiment
from mfdl.trust.base import MODELS

HEAVY = ["torch", "cvxpy", "sklearn", "matplotlib", "scipy", "pyarrow", "networkx", "joblib"]
CONFIGS = {config.command: config for config in (AccountConfig, AttackConfig, AuditConfig, Experiment, FactorizeConfig)}
COMMANDS = typer.main.get_command(app).commands


def run_python(code):
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=600)


def test_help_brings_none_of_the_heavy_libraries():
    arguments = [["--help"], ["--version"], *([name, "--help"] for name in CONFIGS)]
    code = (
        "import sys\nfrom mfdl.commands import main\n"
        f"codes = [main(arguments) for arguments in {arguments!r}]\n"
        f"print([name for name in {HEAVY!r} if name in sys.modules], max(codes))"
    )
    done = run_python(code)
    assert done.stdout.splitlines()[-1] == "[] 0", done.stdout + done.stderr


def test_version_and_help(capsys):
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"mfdl {mfdl.__version__}\n"
    output = printed(
        capsys,
    )
    assert all(name in output for name in [*CONFIGS, "claims", "data", "mechanisms", "trust"])


@each("start", ["-c", "import sys; from mfdl.commands import main; sys.exit(main())"], ["-m", "mfdl"])
def test_console_script_runs_in_a_process_of_its_own(start):
    command = [sys.executable, *start, "factorise"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert done.stderr.startswith("mfdl: unknown command 'factorise'; did you mean 'factorize'?")


@each(
    "arguments, message",
    (["comapre"], "did you mean 'compare'"),
    (["compare", "--epoch", "3"], "--epochs"),
    (["compare", "--epochs", "many"], "--epochs must be a whole number, got 'many'"),
    (["factorize", "--mechanism", "mafald"], "did you mean 'mafalda'"),
    (["compare", "--config", "missing.toml"], "cannot read --config missing.toml"),
)
def test_wrong_names_are_one_line_with_the_nearest(arguments, message, capsys):
    refused(capsys, message, *arguments)


@pytest.mark.parametrize("name", ["account", "attack", "audit", "factorize", "compare"])
def test_mechanism_and_mechanisms_are_one_option(name, tmp_path, capsys):
    (tmp_path / "o.toml").write_text('mechanisms = ["nothing"]')
    for arguments in (["--mechanism", "nothing"], ["--mechanisms", "nothing"], ["--config", str(tmp_path / "o.toml")]):
        refused(capsys, "unknown mechanism 'nothing'", name, *arguments)
    output = printed(capsys, name, "--help")
    assert "--mechanism " in output
    assert "--mechanisms" not in output


VALUES = {  # of a field, in a file: what its default is not
    "trust": "released", "graph": "ring:n=5", "adjacency": "zero-out", "mechanism": "mafalda",
    "mechanisms": "bsr,none",
    "participation": "every-step", "unit": "user", "release": "none", "task": "housing", "gradients": "per-step",
    "bound": "certified", "objective": "message", "error_weights": "last:2", "settings": [], "solver": "autodiff",
    "mu": 3.0,
}  # fmt: skip


@pytest.mark.parametrize("name", CONFIGS)
def test_the_options_are_the_fields(name):
    fields = CONFIGS[name].fields()
    options = {parameter.name: parameter for parameter in COMMANDS[name].params}
    assert set(options) - set(fields) <= {"config", "out", "resume", "overwrite", "verbose", "as_json", "help"}
    assert {"config", "as_json"} < set(options)
    for field, (_, option, default) in fields.items():
        assert (list(option.flags), option.help) == (options[field].opts, options[field].help)
        printed = ",".join(default) if isinstance(default, tuple) and default else default or None
        assert (options[field].default or None) == printed


@pytest.mark.parametrize("name", CONFIGS)
def test_python_and_toml_say_the_same(name, tmp_path):
    config = CONFIGS[name]
    values = {field: VALUES[field] for field in config.fields() if field in VALUES}
    values |= {"mechanism": ["mafalda"], "trust": ["ldp", "pndp"]} if name == "audit" else {}
    values |= {"error_weights": ["last:2"], "participation": "cyclic"} if name == "compare" else {}
    values |= {"adjacency": "replace-one", "participation": "cyclic"} if name == "factorize" else {}
    flags = {field: option.flags[0].lstrip("-") for field, (_, option, _) in config.fields().items()}
    lines = [f"{flags[field]} = {json.dumps(value)}" for field, value in values.items()]
    (tmp_path / "o.toml").write_text(
        "\n".join([f"[{name}]", *lines, f"[{'plan' if name != 'plan' else 'audit'}]", "x = 1"])
    )
    given = {field: tuple(value) if isinstance(value, list) else value for field, value in values.items()}
    loaded = config.load(tmp_path / "o.toml")
    assert (loaded, dataclasses.replace(loaded)) == (config(**given), loaded)
    (tmp_path / "results.json").write_text(json.dumps({"config": loaded.options()}))
    assert config.load(tmp_path / "results.json") == loaded  # what is kept reads back
    refuses("graph: must be a text, got 3", lambda: config.load(toml(tmp_path, "graph = 3")))


def toml(folder, text):
    (folder / "o.toml").write_text(text)
    return folder / "o.toml"


SMALL = ["--graph", "ring:n=4", "--epochs", "2", "--period", "4"]


class TestConfigFiles:
    def test_file_sets_defaults_and_flags_win(self, tmp_path, capsys):
        file = toml(
            tmp_path, 'graph = "ring:n=4"\nepochs = 2\nmechanism = "bsr"\n[factorize]\nperiod = 4\n[compare]\nmu = 1'
        )
        answer = answer_of(capsys, "factorize", "--config", str(file), "--epochs", "3")
        assert (answer["mechanism"], answer["nodes"], answer["epochs"], answer["period"]) == ("bsr", 4, 3, 4)

    def test_dashes_and_underscores_are_alike(self, tmp_path, capsys):
        file = toml(tmp_path, "max_iterations = 1\nlargest-component = true")
        options = ["--config", str(file), *SMALL, "--tolerance", "1e-12"]
        assert answer_of(capsys, "factorize", *options, code=3)["status"] == "stopped"

    def test_every_step_reads_back_what_it_wrote(self, tmp_path, capsys):
        options = ["--participation", "every-step", "--steps", "3"]
        assert main(["account", "--graph", "ring:n=4", *options, "--out", str(tmp_path)]) == 0
        capsys.readouterr()
        assert answer_of(capsys, "account", "--config", str(tmp_path / "results.json"))["steps"] == 3

    @each(
        "name, content, message",
        ("o.toml", "epoch = 3", "epoch: unknown key; did you mean 'epochs'?"),
        ("o.toml", "epochs = ", "is not valid TOML"),
        ("o.toml", "epochs = [1, 2]", "epochs: must be a text, a number or a list of texts"),
        ("o.toml", "json = true", "json: unknown key"),
        ("o.toml", 'epochs = "2"', "epochs: must be an integer, got '2'; write it without quotes"),
        ("o.toml", 'tolerance = "1"', "tolerance: must be a number, got '1'; write it without quotes"),
        ("o.toml", "epochs = true", "epochs: must be an integer, got True"),
        ("o.toml", "graph = 3", "graph: must be a text, got 3"),
        ("o.toml", "data-home = 3", "data-home: must be a path, got 3"),
        ("o.toml", 'largest-component = "yes"', "largest-component: must be true or false, got 'yes'"),
        ("results.json", "{}", "no `config` object"), ("results.json", "{", "is not valid JSON"),
    )  # fmt: skip
    def test_refused(self, name, content, message, tmp_path, capsys):
        (tmp_path / name).write_text(content)
        refused(capsys, message, "factorize", "--config", str(tmp_path / name))
        refuses(message.partition(";")[0].replace("?", "."), FactorizeConfig.load, tmp_path / name)


LONG = (["--epochs", "1001", "--period", "1000"], "1,000,000 steps")


@each(
    "name, more, most",
    ("attack", ["--attacker", "0", "--steps", "1000001"], "1,000,000 steps"),
    *((name, *LONG) for name in ("audit", "account", "factorize")),
    ("compare", ["--seeds", str(10**20)], "100,000 seeds"),
)
def test_more_than_any_run_has_is_refused_before_any_work(name, more, most, capsys):
    refused(capsys, f"at most {most}", name, *more, "--graph", "ring:n=4")


def test_seeds_that_tables_cannot_hold_are_refused_before_any_work(tmp_path, capsys):
    largest = 2**63 - 1
    arguments = ["compare", "--graph", "ring:n=4", "--epochs", "1", "--period", "2", "--mechanisms", "dp-dsgd"]
    last_two = [*arguments, "--seeds", "2", "--first-seed"]
    refused(capsys, "lower --first-seed", *last_two, str(largest))
    assert main([*last_two, str(largest - 1), "--out", str(tmp_path / "run")]) == 0


@each(
    "command, message",
    (["account", "--epsilon", "2"], "--epsilon 2 needs --delta in (0, 1), e.g. --delta 1e-6"),
    (["compare", "--epsilon", "1,2"], "--epsilon 1 needs --delta"),
    (["plan", "--records", "9", "--epsilon", "2"], "--epsilon 2 needs --delta"),
    (["audit", "--config", "o.toml"], "--epsilon 3 needs --delta"),
    (["sweep", "s.toml"], "s.toml, line 1, epsilon: epsilon needs a delta in (0, 1)"),
    (["account", "--adjacency", "substitution"], "unknown adjacency 'substitution'; it is called 'replace-one"),
    (["graph", "inspect", "ring:n=5"], "'ring:n=5' is a named graph, and `mfdl graph inspect` reads files"),
    (["compare", "--learning-rate", "1"], "it is called --lr here."),
    (["account", "--max-grad-norm", "1"], "No such option: --max-grad-norm; it is called --clip-norm here."),
)
def test_a_target_needs_its_delta_and_words_of_other_libraries_are_known(
    command, message, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "o.toml").write_text("epsilon = 3\n")
    (tmp_path / "s.toml").write_text("epsilon = [1, 3]\nmechanisms = ['dp-dsgd']\n")
    refused(capsys, message, *command)


def test_a_keyword_of_another_library_is_known_in_python():
    with pytest.raises(TypeError, match="argument 'max_grad_norm'; it is called 'clip_norm' here"):
        mfdl.Privacy(mfdl.trust.LDP(), adjacency="zero-out", max_grad_norm=1.0)


EVERY = {**MECHANISMS, **OF_BALLS_IN_BINS}


def test_mechanisms_as_json_are_the_registry(capsys):
    rows = answer_of(capsys, "mechanisms")
    assert [row["name"] for row in rows] == list(EVERY)
    for row in rows:
        assert set(row) == {"name", "summary", "trust", "paper", "erratum", "models", "parameters"}
    parameters = {row["name"]: row["parameters"] for row in rows}
    assert parameters["decor"] == {"sigma_ldp": "float", "sigma_cor": "float"}
    assert parameters["zip-dl"]["self_messages"] == "bool"


def test_mechanisms_as_a_table(capsys):
    assert main(["mechanisms"]) == 0
    output = capsys.readouterr()
    assert output.err == ""
    assert all(name in output.out for name in (*EVERY, "file:FILE"))


def test_help_of_the_module_has_a_row_for_every_trust_model():
    rows = [line.strip("| ").split(" | ") for line in (trust.__doc__ or "").splitlines() if line.startswith("| ")]
    assert [row[0].partition("(")[0] for row in rows[2:]] == list(MODELS)
    assert [row[1:] for row in rows[2:]] == [
        [entry.seen, entry.gradients_known, entry.noise_known] for entry in MODELS.values()
    ]


def test_trust_says_where_messages_are_hidden():
    algorithm = algorithms.dp_dsgd(dynamics_on("path:n=4"), EveryStep(1))
    needed = {"colluding": {"colluders": [0]}, "coalitions": {"coalition_size": 1}}
    for name, entry in MODELS.items():
        assert entry.hides_messages == trust.named(name, **needed.get(name, {})).hides_messages(algorithm), name


def test_trust_list(capsys):
    rows = answer_of(capsys, "trust", "list")
    assert [row["name"] for row in rows] == list(MODELS)
    keys = {"name", "attacker", "seen", "gradients_known", "noise_known", "release", "options"}
    assert all(set(row) == keys for row in rows)
    assert {row["name"]: row["options"] for row in rows if row["options"]} == {
        "pndp": ["--attackers A,B", "--all-attackers"],
        "colluding": ["--colluders A,B"],
        "coalitions": ["--coalition-size Q"],
        "secure-sum": ["--attackers A,B"],
    }
    output = printed(capsys, "trust", "list")
    assert all(name in output for name in MODELS)


def test_trust_explain(capsys):
    for name, entry in MODELS.items():
        words = answer_of(capsys, "trust", "explain", name)
        assert (words["name"], words["attacker"]) == (name, entry.observer)
        output = printed(capsys, "trust", "explain", name)
        assert all(part in output for part in (words["attacker"], words["seen"], *words["options"]))
    refused(
        capsys, "unknown trust model 'eavesdroper'; did you mean 'eavesdropper'?", "trust", "explain", "eavesdroper"
    )


def say_hello(name: str = "you") -> None:
    """Greet."""
    typer.echo(f"hello {name}")


@pytest.fixture
def installed(monkeypatch):
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
    assert (main(["greet", "--name", "all"]), capsys.readouterr().out) == (0, "hello all\n")
    assert "greet       Greet." in printed(capsys, "--help")
    refused(capsys, "did you mean 'greet'?", "gret")


def test_no_package_replaces_a_command_of_this_one(installed, capsys):
    installed(extensions.COMMANDS, "trust", f"{__name__}:say_hello")
    assert (listed().count("trust"), main(["trust", "list", "--json"])) == (1, 0)
    assert len(json.loads(capsys.readouterr().out)) == 9


def test_commands_of_this_package_do_not_look_for_others(monkeypatch):
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda **_: pytest.fail("looked"))
    assert main(["trust", "explain", "pndp"]) == 0


def test_without_other_packages_there_are_ours(installed, capsys):
    assert "claims" not in listed()
    refused(capsys, "unknown command 'claims'", "claims")


def test_without_a_bibliography_citing_says_what_to_install(installed, capsys):
    refused(capsys, "install with `pip install mfdl`", "mechanisms", "--mechanism", "corn", "--cite")


@pytest.mark.parametrize("value", ["no_such_package.commands:run", f"{__name__}:no_such_function"])
def test_an_entry_that_cannot_be_imported_says_what_to_install(installed, value):
    installed(extensions.COMMANDS, "broken", value)
    refuses(r"'broken' of mfdl\.commands is .* cannot", extensions.load, extensions.COMMANDS, "broken")
    assert main(["broken"]) == 2
