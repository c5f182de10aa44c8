// @node-idempotency/core around a handler of Node's own server, with its store in memory.
const http = require("http");
const { Idempotency } = require("@node-idempotency/core");
const { MemoryStorageAdapter } = require("@node-idempotency/storage-adapter-memory");

let count = 0;
const idempotency = new Idempotency(new MemoryStorageAdapter());
const send = (response, body) => {
    response.writeHead(201, { "content-type": "application/json", "content-length": body.length });
    response.end(body);
};
const server = http.createServer((request, response) => {
    if (request.url === "/runs") {
        response.end(String(count));
        return;
    }
    const parts = [];
    request.on("data", (part) => parts.push(part));
    request.on("end", async () => {
        const { method, headers, url: path } = request;
        const asked = { method, headers, path, body: JSON.parse(Buffer.concat(parts)) };
        const known = await idempotency.onRequest(asked);
        if (known) {
            send(response, known.body);
            return;
        }
        const id = "ch_" + String(count++).padStart(16, "0");
        const body = JSON.stringify({ id, amount: 100, currency: "eur" });
        await idempotency.onResponse(asked, { body });
        send(response, body);
    });
});
server.keepAliveTimeout = 60000;
server.listen(Number(process.argv[2]), "127.0.0.1");
