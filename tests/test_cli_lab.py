"""The commands of the extra ``lab``, where the extra is installed and where it is not."""

import pytest

from deepgat import cli
from test_cli import assert_sentence, run  # noqa: F401 - a fixture


@pytest.mark.parametrize("name", cli.LAB)
def test_a_command_of_the_missing_extra_says_what_to_install(run, monkeypatch, name):  # noqa: F811
    monkeypatch.setattr(cli, "find_spec", lambda module: None)
    for arguments in ((), ("--suite", "layer", "extra"), ("--help",)):
        result = run(name, *arguments)
        assert_sentence(result, f"deepgat {name} needs matplotlib", "pip install 'deepgat[lab]'")
    assert run("models").code == 0


@pytest.mark.parametrize("name", cli.LAB)
def test_the_commands_are_there_with_the_extra(run, name):  # noqa: F811
    shown = run(name, "--help")
    assert shown.code == 0
    assert f"deepgat {name}" in shown.out
