"""Signatures of requests for brokers with `aclEnable = true`, as AclClientRPCHook of RocketMQ 4.4 to 5.x makes them.

The values of all fields, in the order of their names, and the body are signed with HmacSHA1; the signature travels in Base64
beside the access key. The same is accepted by the ACL 2.0 of 5.3 (`authenticationEnabled`).
"""

import base64
import hashlib
import hmac
from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Signer:
    """Signs requests with an account's keys. The secret is never shown."""

    access_key: str
    secret_key: str = field(repr=False)

    def signed(self, fields: Mapping[str, str], body: bytes) -> dict[str, str]:
        """The fields of a request with the two that an ACL asks for."""
        named = {**fields, "AccessKey": self.access_key}
        content = "".join(named[name] for name in sorted(named)).encode() + body
        digest = hmac.new(self.secret_key.encode(), content, hashlib.sha1).digest()
        return {**named, "Signature": base64.b64encode(digest).decode()}
