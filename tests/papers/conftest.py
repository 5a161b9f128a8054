"""Figures by the command line, as their JSON."""

import json

import pytest

from mfdl.commands import main


@pytest.fixture
def reproduced(capsys, tmp_path):
    def answer(name, *options, out=tmp_path):
        assert main(["reproduce", name, "--quick", "--json", "--jobs", "1", "--out", str(out), *map(str, options)]) == 0
        return json.loads(capsys.readouterr().out)

    return answer
