"""Uploads bodies that are too large, with http.client. Prints how many got their 413."""

import http.client
import sys

server, uploads = sys.argv[1], int(sys.argv[2])
body = b"x" * (8 << 20)
seen = 0
for number in range(uploads):
    headers = {"Authorization": "Bearer alice", "Idempotency-Key": f"http-client-{number:08}"}
    connection = http.client.HTTPConnection(server, timeout=60)
    try:
        connection.request("POST", "/any/charge", body, headers)
        response = connection.getresponse()
        seen += response.status == 413 and b"request_body_too_large" in response.read()
    except (OSError, http.client.HTTPException) as error:
        print(repr(error), file=sys.stderr)
    connection.close()
print(seen)
