# pyright: reportMissingImports=false
"""Flower's control API, as far as it is needed: admitting nodes, starting runs, and asking how they stand.

Who may use Flower's control API: whoever can read `control.secret` in the server's folder, and nobody else.

Flower has a place for account authentication and brings none in its open edition: whoever reaches the port may admit
nodes and run code. This is the plug-in that it asks before each call of that API.
"""

import hmac
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
from flwr.common.constant import ACCESS_TOKEN_KEY, NOOP_ACCOUNT_NAME, NOOP_FLWR_AID
from flwr.supercore.auth.typing import AccountAuthCredentials, AccountAuthLoginDetails, AccountInfo
from flwr.superlink.auth_plugin import ControlAuthnPlugin

from tacit.errors import TacitError
from tacit.federation.flower.patch import Patch

Metadata = Sequence[tuple[str, str | bytes]]
LOADED = Patch(
    "flwr.superlink.cli.flower_superlink", "load_control_authn_plugin", (), "_parse_superlink_lifespan_config"
)


class BySecret(ControlAuthnPlugin):
    """Nobody logs in, and no token is renewed: the secret is in the request, or the request is refused."""

    def __init__(self, secret: bytes = b"") -> None:
        if len(secret) < 32:
            raise ValueError("the secret of the control API is too short")
        self._secret = secret

    def get_login_details(self) -> AccountAuthLoginDetails | None:
        return None

    def validate_tokens_in_metadata(self, metadata: Metadata) -> tuple[bool, AccountInfo | None]:
        tokens = [value for name, value in metadata if name == ACCESS_TOKEN_KEY]
        if len(tokens) != 1 or not hmac.compare_digest(_bytes(tokens[0]), self._secret):
            return False, None
        return True, AccountInfo(flwr_aid=NOOP_FLWR_AID, account_name=NOOP_ACCOUNT_NAME)

    def get_auth_tokens(self, device_code: str) -> AccountAuthCredentials | None:
        return None

    def refresh_tokens(self, metadata: Metadata) -> tuple[Metadata | None, AccountInfo | None]:
        return None, None


def require_secret(path: Path) -> None:
    """The SuperLink of this process asks for the secret in that file."""
    plugin = BySecret(path.read_bytes().strip())
    LOADED.put(lambda: plugin)


def _bytes(value: str | bytes) -> bytes:
    return value if isinstance(value, bytes) else value.encode()


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
                self._stop(run, StopRunRequest(run_id=run))

    def _stop(self, run: int, request: Any) -> None:
        """A run that has finished since it was looked up cannot be stopped, and need not be."""
        try:
            self._call("StopRun", request)
        except TacitError:
            if self.status(run) != "finished":
                raise

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
