"""The commands at the paper's size that an example names run, on stand-ins of the same shapes."""

import os
import re
import runpy
import sys
from pathlib import Path

import pytest
import torch
from datasets.test_loading import write_images

SCRIPT = Path(__file__).parents[1] / "examples/papers/reproduce_immer_mnist.py"
TEXT = SCRIPT.read_text(encoding="utf-8")
FULL, CIFAR = (re.search(rf'{name}="(.*)"', TEXT)[1] for name in ("FULL", "CIFAR"))
COMMANDS = [
    line.replace("$CIFAR", CIFAR).split()
    for line in re.findall(r"mnist\.py \$FULL ([^#\n]*)", TEXT)
]
SMALL = ["--epochs", "1", "--augmentations", "2", "--seeds", "1", "--versions", "partial"]
# The others take seconds, and the Wide ResNet, with its 2.7 million weights, a minute.
QUICK = {"fashion_mnist", "--hidden"}


@pytest.mark.long
@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize(
    "command",
    [
        pytest.param(c, id=f"{c[1]}-{c[-1]}", marks=[] if set(c) >= QUICK else [pytest.mark.slow])
        for c in COMMANDS
    ],
)
def test_runs(command, tmp_path, monkeypatch, capsys):
    name = command[command.index("--data") + 1] if "--data" in command else "mnist"
    write_images(tmp_path, name, 20, 10)
    monkeypatch.setitem(os.environ, "SKBAYES_SYM_DATA", str(tmp_path))
    device = ["--device", "cuda" if torch.cuda.is_available() else "cpu"]
    methods = ["--methods", "non-invariant", "LILA"]
    argv = [str(SCRIPT), *FULL.split(), *command, *SMALL, *device, *methods]
    monkeypatch.setattr(sys, "argv", argv)
    runpy.run_path(str(SCRIPT), run_name="__main__")
    printed = capsys.readouterr().out
    assert re.search(r"LILA +seed 0: accuracy \d", printed)
    assert "20 images, 1 seeds" in printed


def test_every_network_and_set_has_a_command():
    words = {word for command in COMMANDS for word in command}
    assert {"mlp", "cnn", "resnet-8-16", "wrn-16-4", "fashion_mnist", "cifar10"} <= words | {"mlp"}
    assert "--device cuda" in FULL
