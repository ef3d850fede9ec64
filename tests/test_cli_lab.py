"""The commands of the extra ``lab``, where the extra is installed and where it is not."""

import pytest

from deepgat.cli import lab
from test_cli import assert_sentence, run  # noqa: F401 - a fixture


@pytest.fixture
def without_extra(monkeypatch):
    monkeypatch.setattr(lab, "NEEDED", ("not_a_module",))


@pytest.mark.parametrize("name", lab.COMMANDS)
@pytest.mark.parametrize("arguments", [(), ("--suite", "layer", "extra"), ("--help",)])
def test_a_command_of_the_missing_extra_says_what_to_install(run, without_extra, name, arguments):  # noqa: F811
    result = run(name, *arguments)
    assert_sentence(result, f"deepgat {name} needs not_a_module", "pip install 'deepgat[lab]'")


def test_help_lists_the_commands_without_the_extra_too(run, without_extra):  # noqa: F811
    shown = run("--help")
    assert shown.code == 0
    for name in ("train", "predict", *lab.COMMANDS):
        assert name in shown.out
    assert shown.out.count("pip install 'deepgat[lab]'") == len(lab.COMMANDS)
    assert run("models").code == 0


@pytest.mark.parametrize("name", lab.COMMANDS)
def test_the_commands_are_there_with_the_extra(run, name):  # noqa: F811
    shown = run(name, "--help")
    assert shown.code == 0
    assert f"deepgat {name}" in shown.out
