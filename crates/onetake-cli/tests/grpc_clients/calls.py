"""Calls a gRPC service with grpcio's own retries. Arguments: address, number of calls."""

import json
import sys
import uuid

import grpc

address, count = sys.argv[1], int(sys.argv[2])
policy = {
    "methodConfig": [
        {
            "name": [{"service": "billing.v1.Payments"}],
            "retryPolicy": {
                "maxAttempts": 5,
                "initialBackoff": "0.01s",
                "maxBackoff": "0.05s",
                "backoffMultiplier": 2,
                "retryableStatusCodes": ["UNAVAILABLE", "ABORTED"],
            },
        }
    ]
}
options = [
    ("grpc.enable_retries", 1),
    ("grpc.service_config", json.dumps(policy)),
    ("grpc.enable_http_proxy", 0),
    ("grpc.initial_reconnect_backoff_ms", 20),
    ("grpc.min_reconnect_backoff_ms", 20),
    ("grpc.max_reconnect_backoff_ms", 100),
]
with grpc.insecure_channel(address, options=options) as channel:
    charge = channel.unary_unary("/billing.v1.Payments/Charge")
    for nth in range(count):
        key = f"python-{uuid.uuid4()}"
        metadata = [
            ("idempotency-key", key),
            ("x-case", key),
            ("authorization", "Bearer alice"),
        ]
        try:
            reply, call = charge.with_call(str(nth).encode(), metadata=metadata, timeout=60)
            trailers = dict(call.trailing_metadata())
            told = {"reply": reply.decode(), "cost": trailers.get("x-cost")}
        except grpc.RpcError as error:
            told = {"error": error.code().name, "details": error.details()}
        print(json.dumps({"case": key, **told}), flush=True)
