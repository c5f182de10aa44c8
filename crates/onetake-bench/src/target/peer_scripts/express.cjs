// express-idempotency in front of a handler, with its store in memory.
const express = require("express");
const { idempotency, getSharedIdempotencyService } = require("express-idempotency");

let count = 0;
const app = express();
app.disable("etag");
app.get("/runs", (request, response) => response.type("text").send(String(count)));
app.use(express.json());
app.use(idempotency());
app.post("/v1/charges", (request, response) => {
    // The package asks handlers for this test.
    if (getSharedIdempotencyService().isHit(request)) return;
    const id = "ch_" + String(count++).padStart(16, "0");
    response.status(201).json({ id, amount: 100, currency: "eur" });
});
app.listen(Number(process.argv[2]), "127.0.0.1");
