// Creates customers, and prints the result of the SDK for each.
// CommonJS, because Node does not search NODE_PATH for ES modules.
const Stripe = require("stripe");

const [base, secretKey, retries, calls] = process.argv.slice(2);
const { hostname, port } = new URL(base);
const stripe = new Stripe(secretKey, {
  host: hostname,
  port,
  protocol: "http",
  maxNetworkRetries: Number(retries),
});

async function create({ email, key }) {
  try {
    const customer = await stripe.customers.create({ email }, key ? { idempotencyKey: key } : {});
    const { headers } = customer.lastResponse;
    return { id: customer.id, replayed: headers["idempotent-replayed"] ?? null };
  } catch (error) {
    const { type, statusCode, rawType, code, message } = error;
    return { raised: type, status: statusCode, type: rawType, code, message };
  }
}

(async () => {
  for (const call of JSON.parse(calls)) console.log(JSON.stringify(await create(call)));
  // The SDK does not read a response that it retries after, and Node would wait for that connection.
  process.exit();
})();
