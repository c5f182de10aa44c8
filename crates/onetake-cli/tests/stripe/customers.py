"""Creates customers, and prints the result of the SDK for each."""

import json
import sys

import stripe

base, secret_key, retries, calls = sys.argv[1:]
client = stripe.StripeClient(
    secret_key, base_addresses={"api": base}, max_network_retries=int(retries)
)
for call in json.loads(calls):
    options = {"idempotency_key": call["key"]} if "key" in call else {}
    try:
        customer = client.v1.customers.create({"email": call["email"]}, options)
        headers = customer.last_response.headers
        told = {"id": customer.id, "replayed": headers.get("Idempotent-Replayed")}
    except stripe.StripeError as error:
        told = {
            "raised": type(error).__name__,
            "status": error.http_status,
            "type": error.error and error.error.type,
            "code": error.error and error.error.code,
            "message": error.user_message,
        }
    print(json.dumps(told), flush=True)
