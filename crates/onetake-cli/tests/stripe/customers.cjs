// Creates customers as asked, and prints what the SDK made of each answer.
// CommonJS, because modules of the newer kind are not looked for in NODE_PATH.
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
  // The SDK leaves an answer unread that it retries after, and Node would wait for that connection.
  process.exit();
})();
