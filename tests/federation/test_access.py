"""Another user of the machine reaches Flower's ports on loopback, and is refused."""
# pyright: reportMissingImports=false

import asyncio
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr", reason="needs the extra 'flower'")

import httpx
from flwr.proto.control_pb2 import ListRunsRequest, RegisterNodeRequest, StartRunRequest
from flwr.supercore.constant import TaskType
from flwr.supercore.superexec.executor.types import ExecutionSpec

from tacit.errors import TacitError
from tacit.federation.flower import control, executor
from tacit.federation.flower.control import Control
from tacit.federation.service.tls import make_secret

Ask = Callable[..., int]


@pytest.fixture
def ask(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Ask:
    """The status of a call to Flower's own SuperLink, set up as `tacit serve` does, without a network."""
    from flwr.superlink.main import create_app

    flower_superlink: Any = import_module(control.LOADED.module)
    monkeypatch.setattr(sys, "argv", ["flower-superlink", "--insecure", "--isolation", "process"])
    monkeypatch.setattr(flower_superlink, control.LOADED.name, flower_superlink.load_control_authn_plugin)
    make_secret(tmp_path / "control.secret")
    control.require_secret(tmp_path / "control.secret")
    app = create_app(flower_superlink._parse_superlink_lifespan_config(), flower_superlink.SuperLinkLifespan)
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)

    def status(path: str, request: Any, **headers: str) -> int:
        async def post() -> httpx.Response:
            async with httpx.AsyncClient(transport=transport, base_url="https://link") as client:
                what = {"content-type": "application/protobuf", **headers}
                return await client.post(path, content=request.SerializeToString(), headers=what)

        return asyncio.run(post()).status_code

    return status


CALLS = {"list-runs": ListRunsRequest(), "register-node": RegisterNodeRequest(), "start-run": StartRunRequest()}


@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_the_control_api_refuses_everybody_without_the_secret(ask: Ask, tmp_path: Path) -> None:
    secret = (tmp_path / "control.secret").read_text()
    for name, request in CALLS.items():
        for wrong in ({}, {"authorization": "Bearer x"}, {"authorization": f"Basic {secret}"},
                      {"authorization": f"Bearer {secret[:-1]}"}):  # fmt: skip
            assert ask(f"/v1/control/{name}", request, **wrong) == 401
    assert ask("/v1/control/list-runs", ListRunsRequest(), authorization=f"Bearer {secret}") != 401


def test_a_short_secret_is_no_secret(tmp_path: Path) -> None:
    (tmp_path / "control.secret").write_bytes(b"\n")
    with pytest.raises(ValueError, match="too short"):
        control.require_secret(tmp_path / "control.secret")


def answering(status: int) -> Any:
    def send(self: Control, name: str, request: Any, secret: str | None) -> Any:
        if status == 200:
            return "everything"
        answer = httpx.Response(status, request=httpx.Request("POST", "https://link"))
        raise httpx.HTTPStatusError("refused", request=answer.request, response=answer)

    return send


def test_a_superlink_that_answers_to_anybody_is_not_served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    link = Control("127.0.0.1:1", tmp_path / "ca.crt", tmp_path / "control.secret")
    monkeypatch.setattr(Control, "_send", answering(401))
    link.check_refusal()
    for status, reason in ((200, "answers to anybody"), (500, "does not work")):
        monkeypatch.setattr(Control, "_send", answering(status))
        with pytest.raises(TacitError, match=reason):
            link.check_refusal()


class Recorded:
    """A process that is not started."""

    def __init__(self, seen: list[Any]) -> None:
        self._seen = seen

    def __call__(self, command: list[str], **more: Any) -> Any:
        self._seen.append((command, more))
        raise OSError("enough")


@pytest.mark.parametrize("kind", [TaskType.SERVER_APP, TaskType.CLIENT_APP])
def test_the_token_of_a_task_is_on_no_command_line(
    kind: TaskType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Any] = []
    monkeypatch.setattr(executor.subprocess, "Popen", Recorded(seen))
    spec = ExecutionSpec(kind, "127.0.0.1:1", "the-token", False, "ca.crt", False, 1, False, 7)
    made = executor.Quiet(None if kind == TaskType.SERVER_APP else tmp_path / "no-nursery")
    with pytest.raises(OSError, match="enough"):
        made.launch(spec)
    command, more = seen[0]
    assert "--root-certificates" in command
    assert not any("the-token" in part for part in command)
    assert "the-token" not in more["env"].values()


def test_an_executor_starts_the_one_kind_of_application_of_its_side(tmp_path: Path) -> None:
    everything = set(TaskType)
    assert executor.Quiet(None).get_eligible_capacity(everything) == ({TaskType.SERVER_APP}, set())
    assert executor.Quiet(tmp_path).get_eligible_capacity(everything) == ({TaskType.CLIENT_APP}, set())
    spec = ExecutionSpec(TaskType.CONNECTOR, "127.0.0.1:1", "t", False, "ca.crt", False, 1, False, 7)
    assert executor.Quiet(None).launch(spec).status == "failed"
