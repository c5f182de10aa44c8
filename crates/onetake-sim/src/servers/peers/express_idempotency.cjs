const express = require("express");
const { idempotency, getSharedIdempotencyService } = require("express-idempotency");

let count = 0;
const app = express();
app.use(express.json());
app.use(idempotency());
app.post(["/charges", "/refunds"], (request, response) => {
    // The package asks handlers for this test.
    if (getSharedIdempotencyService().isHit(request)) return;
    if (request.body.fail) throw new Error("the operation fails");
    const charge = { charge: ++count };
    setTimeout(() => response.status(201).json(charge), 200);
});
app.get("/charges", (request, response) => response.json({ charges: count }));
app.listen(Number(process.argv[2]), "127.0.0.1");
