"""Flower's executor, except for how it starts an application: with its token out of sight, and bound to its owner.

Flower would write the token of a task, which is all that one needs to read its messages, on a command line that every
user of the machine can read. Here it goes through a pipe or a socket of the owner's own. And it starts the one
kind of application that this side has, and no other.
"""
# pyright: reportMissingImports=false

import json
import os
import socket
import subprocess
from pathlib import Path

from flwr.supercore.constant import TaskType
from flwr.supercore.superexec.executor import LaunchResult
from flwr.supercore.superexec.executor.subprocess_executor import SubprocessExecutor
from flwr.supercore.superexec.executor.types import ExecutionSpec

from tacit.federation.flower import lifeline
from tacit.federation.flower.patch import Patch

CHOSEN = Patch(
    "flwr.supercore.superexec.run_superexec",
    "get_executor",
    ("executor_type", "executor_config", "insecure", "root_certificates_path"),
    "run_superexec",
)


class Quiet(SubprocessExecutor):
    """`door`: the socket of the nursery, where there is one; it answers messages. Else the server application runs."""

    def __init__(self, door: Path | None) -> None:
        self._door = door
        self._kind = TaskType.SERVER_APP if door is None else TaskType.CLIENT_APP
        self._running: list[subprocess.Popen[bytes]] = []

    def get_eligible_capacity(
        self, supported_task_types: set[TaskType], *, insecure: bool = False, root_certificates_path: str | None = None
    ) -> tuple[set[TaskType], set[str]]:
        return supported_task_types & {self._kind}, set()

    def launch(self, spec: ExecutionSpec) -> LaunchResult:
        if spec.task_type != self._kind:
            return LaunchResult.failed(f"a task of type {spec.task_type} is not for this side")
        self._running = [process for process in self._running if process.poll() is None]
        if self._door is None or not _ask(self._door, spec):
            self._running.append(_start(self._kind, spec))
        return LaunchResult.accepted()


def _arguments(spec: ExecutionSpec) -> list[str]:
    certificates = ["--root-certificates", spec.root_certificates_path] if spec.root_certificates_path else []
    parent = ["--parent-pid", str(spec.parent_pid)] if spec.parent_pid else []
    return ["--runtime-api-address", spec.runtime_api_address, *certificates, *parent]


def _ask(door: Path, spec: ExecutionSpec) -> bool:
    """Whether the nursery took it."""
    told = json.dumps(["flwr-clientapp", *_arguments(spec), "--token", spec.token])
    try:
        with socket.socket(socket.AF_UNIX) as line:
            line.settimeout(5.0)
            line.connect(str(door))
            line.sendall(told.encode())
            line.shutdown(socket.SHUT_WR)
            return line.recv(1) == b"1"
    except OSError:
        return False


def _start(kind: TaskType, spec: ExecutionSpec) -> subprocess.Popen[bytes]:
    """A process of this one's group, which reads its token from its standard input."""
    name = "serverapp" if kind == TaskType.SERVER_APP else "clientapp"
    process = subprocess.Popen(
        lifeline.command("tacit.federation.flower.flower_process", name, *_arguments(spec)),
        env=os.environ | lifeline.variables(),
        pass_fds=(lifeline.reading_end(),),
        stdin=subprocess.PIPE,
    )
    assert process.stdin is not None
    with process.stdin as line:
        line.write(spec.token.encode())
    return process


def use(door: Path | None) -> None:
    """The executor of this process is ours."""
    made = Quiet(door)
    CHOSEN.put(lambda *_, **__: made)
