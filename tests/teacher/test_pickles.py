"""Lightning files hold the configuration and the tokenizer of the training: both are passed over, never built."""

from __future__ import annotations

import builtins
import os
import sys
import types
import zipfile
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from typer.testing import CliRunner

from di4c_cli.cli.app import app
from di4c_cli.errors import NameWarning, UserError
from di4c_cli.teacher import pickles, read

NAMES = ("omegaconf.dictconfig.DictConfig", "tokenizers.AddedToken", "lightning.fabric.utilities.data.AttributeDict")
LAYOUTS = {"zip": {}, "legacy": {"_use_new_zipfile_serialization": False}}


class Called:
    """Pickled as the call of a function."""

    def __init__(self, function: Any, *arguments: Any) -> None:
        self.call = function, arguments

    def __reduce__(self) -> tuple[Any, ...]:
        return self.call


@contextmanager
def libraries() -> Iterator[dict[str, type]]:
    """Classes under the names of libraries that exist only inside this block."""
    before, made = dict(sys.modules), {}
    for path in NAMES:
        module, _, name = path.rpartition(".")
        base = dict if name == "AttributeDict" else object
        made[name] = type(name, (base,), {"__module__": module})
        parts = module.split(".")
        for stop in range(1, len(parts) + 1):
            sys.modules[".".join(parts[:stop])] = types.ModuleType(".".join(parts[:stop]))
        setattr(sys.modules[module], name, made[name])
    try:
        yield made
    finally:
        for name in set(sys.modules) - set(before):
            del sys.modules[name]
        sys.modules.update(before)


def save(path: Path, tree: dict[str, Any], *inside: Any, layout: str = "zip") -> None:
    """A file as Lightning writes it: `tree`, and the hyper-parameters with `inside` in the state of an object."""
    with libraries() as made:
        config, token = made["DictConfig"](), made["AddedToken"]()
        types_ = [Any, dict[str, int], list[int], dict, str, int, float, bool]
        config.__dict__ |= {"types": types_, "cache": defaultdict(list, {"a": [1]}), "parent": config, "more": inside}
        token.__dict__ |= {"content": "<x>", "paths": {Path("a"): Path("b")}, "bytes": b"\xff", "set": frozenset([1])}
        hyper = made["AttributeDict"](config=config, tokenizer=token)
        torch.save(tree | {"hyper_parameters": hyper, token: 1}, path, **LAYOUTS[layout])


@pytest.mark.parametrize("layout", LAYOUTS)
def test_lightning_files_with_hyper_parameters_load(golden: Path, tmp_path: Path, layout: str) -> None:
    tree = torch.load(golden / "sdtt_di4c_student" / "last.ckpt", weights_only=True)
    save(tmp_path / "x.ckpt", tree, layout=layout)
    before = set(sys.modules)
    found = pickles.read_pickle(tmp_path / "x.ckpt")
    assert {name.partition(".")[0] for name in set(sys.modules) - before} <= {"encodings"}
    assert found.keys() == tree.keys() | {"hyper_parameters"}
    assert all(torch.equal(found["state_dict"][name], tensor) for name, tensor in tree["state_dict"].items())
    assert isinstance(found["hyper_parameters"]["config"], pickles.LibraryObject)
    assert not vars(found["hyper_parameters"]["config"])
    one, other = (read(str(path), weights="ema") for path in (tmp_path / "x.ckpt", golden / "sdtt_di4c_student"))
    assert all(torch.equal(one.tensors[name], tensor) for name, tensor in other.tensors.items())


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(
    "call",
    [
        Called(os.system, "touch executed"),
        Called(builtins.eval, "1"),
        Called(builtins.exec, "1"),
        Called(builtins.getattr, "a", "upper"),
        Called(builtins.__import__, "os"),
        Called(builtins.open, "executed", "w"),
        Called(bytearray, 10**12),
        Called(types.SimpleNamespace),
    ],
    ids=lambda call: call.call[0].__name__,
)
def test_library_objects_hide_no_call(tmp_path: Path, layout: str, call: Called) -> None:
    save(tmp_path / "x.ckpt", {"state_dict": {}}, [{"a": call}], layout=layout)
    with pytest.raises(UserError, match=r"^x\.ckpt asks for code to be run \(\w+\.\w+\), which di4c never does\."):
        pickles.read_pickle(tmp_path / "x.ckpt")
    assert not Path("executed").exists()


@pytest.mark.parametrize(
    "name",
    """
    os system,builtins map,builtins bytearray,builtins.os system,omegaconf os system,omegaconfig x,xhydra x,enum x
    functools partial,numpy.core.multiarray _reconstruct,copyreg _reconstructor,collections deque,operator attrgetter
    """.strip()
    .replace("\n    ", ",")
    .split(","),
)
def test_names_beside_the_pattern_are_no_library(name: str) -> None:
    assert pickles.INERT_GLOBALS.fullmatch(name) is None and pickles.ALLOWED_GLOBALS.fullmatch(name) is None


def program(path: Path, content: bytes) -> Path:
    """An archive with a pickle written by hand."""
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("archive/data.pkl", b"\x80\x02" + content)
        archive.writestr("archive/version", "3\n")
        archive.writestr("archive/byteorder", "little")
    return path


def test_built_in_types_are_not_called(tmp_path: Path) -> None:
    """As in `list(…)`, `int(…)` and `bytes(10**12)`: the name stands for an object without contents."""
    for name in (b"bytes", b"list", b"dict", b"type", b"tuple"):
        path = program(
            tmp_path / "x.pt", b"}X\x01\0\0\0ac__builtin__\n" + name + b"\n\x8a\x06" + bytes(5) + b"\x01\x85Rs."
        )
        assert isinstance(pickles.read_pickle(path)["a"], pickles.LibraryObject)


def test_names_of_libraries_are_bounded(tmp_path: Path) -> None:
    """Torch goes through all of them for each object: 1 MB of such a file would keep it busy for minutes."""
    names = b"".join(b"ctyping\na%d\n" % i for i in range(5000))
    with pytest.raises(UserError, match="oversized table of contents"):
        pickles.read_pickle(program(tmp_path / "x.pt", names + b"}."))


def test_classes_that_others_declared_safe_are_not_built(tmp_path: Path) -> None:
    """Lightning's users tell torch that omegaconf's classes are safe; to di4c they are not."""
    built = []
    with libraries() as made, torch.serialization.safe_globals([(lambda *a: built.append(a), NAMES[0])]):
        torch.save({"a": Called(made["DictConfig"], 1)}, tmp_path / "x.pt")
        declared = set(torch.serialization.get_safe_globals())
        assert isinstance(pickles.read_pickle(tmp_path / "x.pt")["a"], pickles.LibraryObject)
        assert set(torch.serialization.get_safe_globals()) == declared and not built


def test_objects_of_libraries_are_no_weights(golden: Path, tmp_path: Path) -> None:
    tree = torch.load(golden / "sdtt_di4c_student" / "last.ckpt", weights_only=True)
    with libraries() as made:
        tree["state_dict"]["backbone.vocab_embed.embedding"] = made["DictConfig"]()
        torch.save(tree, tmp_path / "tensor.ckpt")
        torch.save(tree | {"state_dict": made["DictConfig"]()}, tmp_path / "table.ckpt")
        torch.save(made["DictConfig"](), tmp_path / "all.ckpt")
    with pytest.raises(UserError, match=r"'backbone\.vocab_embed\.embedding' is not a plain tensor"):
        read(str(tmp_path / "tensor.ckpt"))
    with pytest.raises(UserError, match="no checkpoint of a known format"):
        read(str(tmp_path / "table.ckpt"))
    with pytest.raises(UserError, match=r"holds no checkpoint but a omegaconf\.dictconfig\.DictConfig"):
        read(str(tmp_path / "all.ckpt"))


def test_files_with_two_sets_of_weights_say_which_was_taken(golden: Path, tmp_path: Path) -> None:
    path = tmp_path / "x.ckpt"
    tree = torch.load(golden / "sdtt_di4c_student" / "last.ckpt", weights_only=True)
    torch.save(tree, path)
    with pytest.warns(NameWarning, match=r"took the live ones, as its authors do\. `di4c convert --weights ema`"):
        read(str(path))
    with pytest.warns(NameWarning, match=r"took the averages, as its authors do\. `di4c convert --weights live`"):
        read(str(golden / "tauldr" / "teacher"))
    for name in [name for name in tree["state_dict"] if "latent" in name]:
        del tree["state_dict"][name]
    torch.save(tree, path)
    with pytest.warns(NameWarning, match=r"took the live ones, although MDLM's authors evaluate the averages\."):
        read(str(path))


@pytest.mark.filterwarnings("error::di4c_cli.errors.NameWarning")
def test_nothing_is_said_where_there_is_no_choice(golden: Path, tmp_path: Path) -> None:
    tree = torch.load(golden / "sdtt_di4c_student" / "last.ckpt", weights_only=True)
    torch.save({"state_dict": tree["state_dict"]}, tmp_path / "x.ckpt")
    read(str(tmp_path / "x.ckpt"))
    read(str(golden / "sdtt_di4c_student"), weights="live")


def test_convert_names_a_model_after_its_folder(golden: Path, tmp_path: Path) -> None:
    for source, name in (("sdtt_di4c_student/last.ckpt", "mine"), ("sdtt", "sdtt")):
        arguments = ["convert", str(golden / source), str(tmp_path / "mine"), "--force"]
        result = CliRunner().invoke(app, arguments)
        assert result.exit_code == 0, result.stderr
        assert yaml.safe_load((tmp_path / "mine" / "config.json").read_text())["name"] == name


def test_other_noise_schedules_are_refused(golden: Path, tmp_path: Path) -> None:
    tree = yaml.safe_load((golden / "sdtt" / "config.json").read_text())
    tree["noise"]["type"] = "cosine"
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(tree))
    with pytest.raises(UserError, match="noise of the configuration has type 'cosine'"):
        read(str(golden / "sdtt"), config=str(tmp_path / "config.yaml"))
