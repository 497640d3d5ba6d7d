"""Makes tests/secagg/vectors.json: `python -m tests.secagg.vectors`. Every secret in it is known; use none of them."""

import json
from pathlib import Path
from typing import Any

import numpy as np

from tacit.secagg import primitives
from tacit.secagg.messages import Terms, dump, encode, pack
from tests.secagg.rounds import STAGES, Round, plain, seeded

FILE = Path(__file__).with_name("vectors.json")
NAMES = ("offer", "shares", "masked", "confirmation", "unmasking")
TERMS = Terms("example", 7, (3, 5, 8, 13), size=5, bits=18, threshold=3, least=3)
EXPLANATION = [
    "Bytes are hexadecimal. Secrets come from SHAKE-256: call number i (from 0) of the source named L gives the first",
    "n bytes of SHAKE-256 of the text L/i, for example 'member 3/0'. Identities are Ed25519 keys; the private key is",
    "call 0 of 'identity/M'. A member calls its source 'member M' in this order: seal key (32 bytes), mask key (32),",
    "seed (32), the threshold - 1 coefficients of the mask key's polynomial, those of the seed's (66 bytes each,",
    "big-endian without the highest 7 bits, lowest power first), and a nonce (12) for each other in rising order.",
    "'round' is a whole one: member 8 drops out after sharing, so that its input is not in the sum and its mask key is",
    "rebuilt. 'sent' has each member's messages as they go over the wire.",
]


def build() -> dict[str, Any]:
    return {
        "explanation": EXPLANATION,
        "terms": _terms(),
        "shamir": _shamir(),
        "keys": _keys(),
        "packing": _packing(),
        "round": _round(),
    }


def _terms() -> dict[str, Any]:
    fields = {name: getattr(TERMS, name) for name in TERMS.__dataclass_fields__}
    return {**fields, "members": list(TERMS.members), "encoded": dump(TERMS).hex(), "digest": TERMS.digest.hex()}


def _shamir() -> dict[str, Any]:
    secret = bytes(range(32))
    shares = primitives.split(secret, 3, range(1, 6), seeded("shamir"))
    return {
        "secret": secret.hex(),
        "threshold": 3,
        "source": "shamir",
        "shares": {str(x): share.hex() for x, share in shares.items()},
        "weights of 1, 3, 5": {str(x): str(w) for x, w in primitives.weights((1, 3, 5)).items()},
    }


def _keys() -> dict[str, Any]:
    one, other = primitives.key_pair(seeded("one")), primitives.key_pair(seeded("other"))
    pair = primitives.pair_key(one.private, other.public, TERMS.digest, 3, 8)
    seed = seeded("seed")(32)
    own = primitives.self_key(seed, TERMS.digest, 3)
    seal = primitives.seal_key(one.private, other.public, TERMS.digest, 3, 8)
    return {
        "private of 3": one.private.hex(),
        "public of 3": one.public.hex(),
        "private of 8": other.private.hex(),
        "public of 8": other.public.hex(),
        "pair key of 3 and 8": pair.hex(),
        "pair mask": primitives.mask(pair, 8).tolist(),
        "seal key from 3 to 8": seal.hex(),
        "seed of 3": seed.hex(),
        "self key of 3": own.hex(),
        "self mask": primitives.mask(own, 8).tolist(),
    }


def _packing() -> dict[str, Any]:
    values = [1, 2**18 - 1, 0, 74565, 131072]
    return {"bits": 18, "values": values, "packed": pack(np.array(values, np.uint32), 18).hex()}


def _round() -> dict[str, Any]:
    vectors = {m: np.array([m, -m, m * m, 0, 100_000]) for m in TERMS.members}
    one = Round(TERMS, vectors, {8: 2}, lambda m: seeded(f"member {m}"))
    found = one.sum()
    assert np.array_equal(found.total, plain(TERMS, vectors, found.survivors))
    sent = {
        str(m): {NAMES[s]: encode(one.sent[s][m]).hex() for s in range(STAGES) if m in one.sent[s]} for m in vectors
    }
    return {
        "inputs": {str(m): vector.tolist() for m, vector in vectors.items()},
        "sent": sent,
        "survivors": list(found.survivors),
        "sum": found.total.tolist(),
    }


if __name__ == "__main__":
    FILE.write_text(json.dumps(build(), indent=1) + "\n")
    print(f"wrote {FILE}")
