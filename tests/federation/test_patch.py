"""What is replaced in Flower is checked first: if Flower renamed it, nothing starts."""
# pyright: reportMissingImports=false

import os
import subprocess
import sys
import threading
import time
from importlib import import_module
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("flwr", reason="needs the extra 'flower'")

from tacit.errors import TacitError
from tacit.federation.flower import control, executor, no_remote_code, server_app, transport
from tacit.federation.flower.patch import Patch
from tacit.federation.flower.transport import FlowerTransport

ALL = (
    no_remote_code.UNPACKED,
    no_remote_code.LOADED,
    no_remote_code.INSTALLED,
    control.LOADED,
    executor.CHOSEN,
    server_app.PULLED,
    transport.RECEIVED,
)
HERE = Path(no_remote_code.__file__).parents[2]
RENAMED = """
from importlib import import_module
run_clientapp = import_module("flwr.supernode.runtime.run_clientapp")
run_clientapp.unpack_fab = run_clientapp.install_from_fab
del run_clientapp.install_from_fab
import_module("flwr.supernode.cli.flwr_clientapp").flwr_clientapp = lambda: print("the server's code runs")
from tacit.federation.flower import no_remote_code as own_code
own_code.main()
"""


@pytest.mark.parametrize("patch", ALL, ids=lambda patch: patch.name)
def test_the_installed_flower_has_what_is_replaced(patch: Patch) -> None:
    assert patch.check() is import_module(patch.module)


@pytest.mark.parametrize("patch", ALL, ids=lambda patch: patch.name)
@pytest.mark.parametrize("way", ["renamed", "other arguments", "not called"])
def test_a_flower_in_which_it_has_changed_is_refused(patch: Patch, way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    module: Any = import_module(patch.module)
    if way == "renamed":
        monkeypatch.setattr(module, f"{patch.name}_v2", getattr(module, patch.name), raising=False)
        monkeypatch.delattr(module, patch.name)
    elif way == "other arguments":
        monkeypatch.setattr(module, patch.name, lambda bundle, *, other: None)
    else:
        *owner, name = patch.caller.split(".")
        monkeypatch.setattr(getattr(module, owner[0]) if owner else module, name, lambda: "another way")
    with pytest.raises(TacitError, match="not the Flower that Tacit knows"):
        patch.put(lambda: None)


def test_a_module_that_is_gone_is_refused() -> None:
    with pytest.raises(TacitError, match=r"there is no flwr\.elsewhere"):
        Patch("flwr.elsewhere", "load", (), "run").check()


def test_what_is_checked_is_then_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("toy_flower")
    exec("def load(bundle): return bundle\ndef run(bundle): return load(bundle)", module.__dict__)
    monkeypatch.setitem(sys.modules, "toy_flower", module)
    Patch("toy_flower", "load", ("bundle",), "run").put(lambda bundle: "our own")
    assert module.run("the server's") == "our own"


def test_half_an_answer_is_waited_for_until_the_deadline_and_no_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    """A member that dies while it sends must not keep the others waiting for the three minutes that Flower would."""
    from flwr.supercore.inflatable.inflatable_utils import ObjectPullError, ObjectUnavailableError

    module: Any = server_app.PULLED.check()
    monkeypatch.setattr(module, "pull_objects", module.pull_objects)
    due = server_app.keep_deadlines()
    carrier = FlowerTransport(None, {}, lambda _: set())  # pyright: ignore
    due.append(carrier)
    began = carrier.until = time.monotonic()
    carrier.until += 1.0

    def half(number: str) -> bytes:
        if number == "there":
            return b"1"
        raise ObjectUnavailableError(number)

    with pytest.raises(ObjectPullError):
        module.pull_objects(object_ids=["there", "missing"], pull_object_fn=half)
    assert 0.9 < time.monotonic() - began < 4.0
    carrier.until = 0.0  # what has come whole is taken even after the deadline
    assert module.pull_objects(object_ids=["there"], pull_object_fn=half) == {"there": b"1"}


def test_an_answer_is_sent_when_it_is_ready_and_not_a_round_later(monkeypatch: pytest.MonkeyPatch) -> None:
    """Flower's node, left with one answer too many by a killed server, sends each when the next question comes."""
    from flwr.supernode.nodestate.in_memory_nodestate import InMemoryNodeState, MessageEntry

    module: Any = transport.RECEIVED.check()
    monkeypatch.setattr(module, transport.RECEIVED.name, module._pull_and_store_message)
    transport.send_when_ready()
    names = transport.RECEIVED.parameters
    state: Any = SimpleNamespace(msg_store={}, lock_msg_store=threading.Lock())

    def look() -> int | None:
        given = dict.fromkeys(names) | {"state": state, "receive": lambda: None}
        return module._pull_and_store_message(**given)

    def entry(answers: str) -> Any:
        return SimpleNamespace(
            is_retrieved=False, message=SimpleNamespace(metadata=SimpleNamespace(reply_to_message_id=answers))
        )

    assert look() is None
    state.msg_store["question"] = entry("")
    assert look() is None  # it is being worked on
    state.msg_store["answer"] = entry("question")
    assert look() == 0
    state.msg_store["answer"].is_retrieved = True
    assert look() is None
    real = InMemoryNodeState.__init__.__code__.co_names  # what is looked at is what Flower has
    assert {"msg_store", "lock_msg_store"} <= set(real)
    assert {"message", "is_retrieved"} <= set(MessageEntry.__dataclass_fields__)


def test_a_client_process_does_not_start_beside_a_flower_that_renamed_its_loader(tmp_path: Path) -> None:
    (tmp_path / "renamed.py").write_text(RENAMED)
    env = {**os.environ, "PYTHONPATH": str(HERE)}
    command = [sys.executable, str(tmp_path / "renamed.py")]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=120)
    assert done.returncode != 0
    assert "the server's code runs" not in done.stdout
    assert "has no install_from_fab" in done.stderr
