import asyncio
import sys
import uvicorn
from idempotency_header_middleware import IdempotencyHeaderMiddleware
from idempotency_header_middleware.backends import MemoryBackend
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.responses import JSONResponse
from starlette.routing import Route

count = 0


async def run(request):
    global count
    body = await request.json()
    if body.get("fail"):
        raise RuntimeError("the operation fails")
    count += 1
    charge = {"charge": count}
    await asyncio.sleep(0.2)
    return JSONResponse(charge, 201)


async def counter(request):
    return JSONResponse({"charges": count})


app = Starlette(
    routes=[
        Route("/charges", run, methods=["POST"]),
        Route("/refunds", run, methods=["POST"]),
        Route("/charges", counter),
    ],
    middleware=[Middleware(IdempotencyHeaderMiddleware, backend=MemoryBackend())],
)
uvicorn.run(app, host="127.0.0.1", port=int(sys.argv[1]), log_level="critical")
