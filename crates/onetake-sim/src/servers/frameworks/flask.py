import sys
from flask import Flask

app = Flask("charges")


@app.route("/v1/charges", methods=["POST"])
def charge():
    return "ran"


app.run(host="127.0.0.1", port=int(sys.argv[1]))
