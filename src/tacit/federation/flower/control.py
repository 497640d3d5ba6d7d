"""Flower's control API, as far as it is needed: admitting nodes, starting runs, and asking how they stand."""
# pyright: reportMissingImports=false

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from tacit.errors import TacitError


@dataclass(frozen=True)
class Control:
    address: str
    ca: Path
    secret: Path  # what proves to the SuperLink that it is the server who asks; see `access.py`

    def register(self, public_key: bytes, name: str) -> int:
        from cryptography.hazmat.primitives.serialization import load_ssh_public_key
        from flwr.proto.control_pb2 import RegisterNodeRequest
        from flwr.supercore.primitives.asymmetric import public_key_to_bytes

        try:
            key: Any = load_ssh_public_key(public_key)
            raw = public_key_to_bytes(key)
        except (ValueError, AttributeError, TypeError) as error:
            raise TacitError(f"the key of '{name}' is not a public key that Flower knows") from error
        node = self._call("RegisterNode", RegisterNodeRequest(public_key=raw, name=name)).node_id
        if not node:
            raise TacitError(f"'{name}' could not be registered: is its key known already?")
        return int(node)

    def unregister(self, node: int) -> None:
        from flwr.proto.control_pb2 import UnregisterNodeRequest

        self._call("UnregisterNode", UnregisterNodeRequest(node_id=node))

    def run(self, app: Path, config: dict[str, str]) -> int:
        """Starts a run of the application in a folder; its number."""
        from hashlib import sha256

        from flwr.cli.build import build_fab_from_disk
        from flwr.common.serde import fab_to_proto, user_config_to_proto
        from flwr.proto.control_pb2 import StartRunRequest
        from flwr.supercore.fab import Fab

        packed = build_fab_from_disk(app)
        bundle = fab_to_proto(Fab(sha256(packed).hexdigest(), packed, {}))
        asked = StartRunRequest(fab=bundle, override_config=user_config_to_proto({**config}))
        told = self._call("StartRun", asked)
        if not told.HasField("run_id"):
            raise TacitError("Flower started no run: see the SuperLink's log")
        return int(told.run_id)

    def status(self, run: int) -> str:
        """ "pending", "starting", "running" or "finished"."""
        return self._statuses(run).get(run, "unknown")

    def stop_runs(self) -> None:
        """Stops every run that has not finished."""
        from flwr.proto.control_pb2 import StopRunRequest

        for run, status in self._statuses().items():
            if status != "finished":
                self._call("StopRun", StopRunRequest(run_id=run))

    def check_refusal(self) -> None:
        """Refuses a SuperLink whose control API answers to somebody who does not have the secret."""
        from flwr.proto.control_pb2 import ListRunsRequest

        for secret in (None, "0" * 64):
            try:
                self._send("ListRuns", ListRunsRequest(), secret)
            except httpx.HTTPStatusError as error:
                if error.response.status_code == 401:
                    continue
                raise TacitError(f"Flower's control API does not work ({error}): see the SuperLink's log") from error
            except httpx.HTTPError as error:
                raise TacitError(f"Flower's control API cannot be reached ({error})") from error
            raise TacitError("Flower's control API answers to anybody on this machine, so nothing is served")

    def _statuses(self, run: int | None = None) -> dict[int, str]:
        from flwr.proto.control_pb2 import ListRunsRequest

        runs = self._call("ListRuns", ListRunsRequest(run_id=run)).run_dict
        return {int(number): str(each.status.status) for number, each in runs.items()}

    def _call(self, name: str, request: Any) -> Any:
        try:
            return self._send(name, request, self.secret.read_text().strip())
        except httpx.HTTPError as error:
            raise TacitError(f"Flower refused {name} ({error}): see the SuperLink's log") from error

    def _send(self, name: str, request: Any, secret: str | None) -> Any:
        from flwr.supercore.control import ControlHttpClient
        from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor

        version: Any = RuntimeVersionHttpInterceptor(component_name="flwr CLI")
        proof: list[Any] = [] if secret is None else [_Bearer(secret)]
        client = ControlHttpClient.from_server_address(
            self.address, insecure=False, root_certificates=self.ca.read_bytes(), interceptors=[version, *proof]
        )
        try:
            return getattr(client, name)(request)
        finally:
            client.close()


@dataclass(frozen=True)
class _Bearer:
    """Puts the secret on every request."""

    secret: str

    def intercept(self, context: Any, call_next: Any) -> Any:
        context.request.headers["authorization"] = f"Bearer {self.secret}"
        return call_next(context)
