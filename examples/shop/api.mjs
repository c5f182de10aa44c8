/** The shop's API. Every `POST /orders` that reaches it is an order: it does not look at keys. */
import { createServer } from "node:http";

import { expressOnetake } from "../../clients/typescript/dist/server.js";

/** Starts the API on a free port. */
export async function startApi() {
  const orders = [];
  const readGatewayHeaders = expressOnetake();
  const server = createServer(async (request, response) => {
    response.setHeader("content-type", "application/json");
    if (request.method !== "POST") {
      response.end(JSON.stringify({ orders: orders.length }));
      return;
    }
    let text = "";
    for await (const chunk of request) text += chunk;
    const { item } = JSON.parse(text);
    readGatewayHeaders(request, response, () => {
      // Both answers are final, so every retry gets the same one.
      response.outcome("record");
      if (item === "unicorn") {
        response.statusCode = 409;
        response.end(JSON.stringify({ error: "sold out" }));
        return;
      }
      orders.push({ item, derivedKey: request.onetake.derivedKey });
      response.statusCode = 201;
      response.end(JSON.stringify({ order: orders.length, item }));
    });
  });
  await new Promise((resolve) => server.listen(0, "127.0.0.1", resolve));
  const close = () => {
    server.closeAllConnections();
    server.close();
  };
  return { url: `http://127.0.0.1:${server.address().port}`, orders, close };
}
