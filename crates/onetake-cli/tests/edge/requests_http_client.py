"""Sends requests on one connection of http.client. Prints the status and the body of each response."""

import http.client
import sys

server, requests = sys.argv[1], int(sys.argv[2])
connection = http.client.HTTPConnection(server, timeout=60)
for number in range(requests):
    connection.request("GET", f"/any/{number}")
    response = connection.getresponse()
    print(response.status, response.read().decode())
