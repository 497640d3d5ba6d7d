"""Flower's control API, as far as it is needed: admitting nodes, and asking how a run stands. Loopback only."""
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

    def status(self, run: int) -> str:
        """ "pending", "starting", "running" or "finished"."""
        from flwr.proto.control_pb2 import ListRunsRequest

        runs = self._call("ListRuns", ListRunsRequest(run_id=run)).run_dict
        return str(runs[run].status.status) if run in runs else "unknown"

    def _call(self, name: str, request: Any) -> Any:
        from flwr.supercore.control import ControlHttpClient
        from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor

        version = RuntimeVersionHttpInterceptor(component_name="flwr CLI")
        client = ControlHttpClient.from_server_address(
            self.address, insecure=False, root_certificates=self.ca.read_bytes(), interceptors=[version]
        )
        try:
            return getattr(client, name)(request)
        except httpx.HTTPError as error:
            raise TacitError(f"Flower refused {name} ({error}): see the SuperLink's log") from error
        finally:
            client.close()
