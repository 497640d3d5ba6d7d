"""Who may use Flower's control API: whoever can read `control.secret` in the server's folder, and nobody else.

Flower has a place for account authentication and brings none in its open edition: whoever reaches the port may admit
nodes and run code. This is the plug-in that it asks before each call of that API.
"""
# pyright: reportMissingImports=false

import hmac
from collections.abc import Sequence
from pathlib import Path

from flwr.common.constant import ACCESS_TOKEN_KEY, NOOP_ACCOUNT_NAME, NOOP_FLWR_AID
from flwr.supercore.auth.typing import AccountAuthCredentials, AccountAuthLoginDetails, AccountInfo
from flwr.superlink.auth_plugin import ControlAuthnPlugin

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
        given = [value for name, value in metadata if name == ACCESS_TOKEN_KEY]
        if len(given) != 1 or not hmac.compare_digest(_bytes(given[0]), self._secret):
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
