import sys
import uvicorn
from fastapi import FastAPI
from fastapi.responses import PlainTextResponse

app = FastAPI()


@app.post("/v1/charges", response_class=PlainTextResponse)
def charge():
    return "ran"


uvicorn.run(app, host="127.0.0.1", port=int(sys.argv[1]), log_level="warning")
