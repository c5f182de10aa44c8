"""Uploads bodies that are too large, with urllib. Prints how many got their 413."""

import sys
import urllib.error
import urllib.request

server, uploads = sys.argv[1], int(sys.argv[2])
body = b"x" * (8 << 20)
seen = 0
for number in range(uploads):
    headers = {"Authorization": "Bearer alice", "Idempotency-Key": f"urllib-upload-{number:08}"}
    request = urllib.request.Request(f"http://{server}/any/charge", body, headers, method="POST")
    try:
        urllib.request.urlopen(request, timeout=60).read()
    except urllib.error.HTTPError as error:
        seen += error.code == 413 and b"request_body_too_large" in error.read()
    except OSError as error:
        print(error, file=sys.stderr)
print(seen)
